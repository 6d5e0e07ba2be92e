"""Inputs of the maps for every continuation of a prefix, in one run of a causal model.

All continuations of a prefix stand behind it in one text, at the same position, and each sees the
prefix and itself: a mask of attention and position numbers say so (Miao et al. 2024, SpecInfer,
tree attention). A model that does not take these is run on every continuation by itself; which it
is is found by trying.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.attack_text.structure import MapsOfOneInput
from gradaudit.audits.attack_text.view import TextView

_ROOM = 1 << 27
"""Elements of attention that a run may take,"""
_HEADS = 16
"""with so many heads."""
_ALIKE = 1e-3


@dataclass(frozen=True)
class Continuations:
    """Misfits of continuations at several places.

    Attributes:
        view: the attacker's.
        places: whose spans count.
        together: whether the model takes all continuations of a prefix at once.
    """

    view: TextView
    places: tuple[MapsOfOneInput, ...]
    together: bool

    @classmethod
    def at(cls, view: TextView, places: tuple[MapsOfOneInput, ...]) -> Self:
        """Whether both ways give the same is tried on one text."""
        tokens = torch.arange(1, 6, device=view.model.device) % view.vocabulary
        one, other = (cls(view, places[:1], together) for together in (False, True))
        prefixes, candidates = tokens[None, :2], tokens[2:]
        try:
            pairs = zip(
                one._apart(prefixes, candidates), other._together(prefixes, candidates), strict=True
            )
            alike = all(torch.allclose(a, b, rtol=_ALIKE, atol=_ALIKE) for a, b in pairs)
        except Exception:  # it does not take positions, or such a mask
            alike = False
        return cls(view, places, together=alike)

    def misfit(self, prefixes: Tensor, candidates: Tensor) -> Tensor:
        """Misfits of each prefix (n, p) with each candidate (m,) behind it, (places, n, m)."""
        texts = prefixes.shape[1] + len(candidates)
        size = texts * texts if self.together else len(candidates) * texts * texts
        run = self._together if self.together else self._apart
        blocks = torch.split(prefixes, max(1, _ROOM // (size * _HEADS)))
        return torch.cat([self._outside(run(block, candidates)) for block in blocks], dim=1)

    def _outside(self, vectors: list[Tensor]) -> Tensor:
        spans = [place.span for place in self.places]
        pairs = zip(spans, vectors, strict=True)
        return torch.stack([span.misfit(x) for span, x in pairs if span is not None]).cpu()

    def _together(self, prefixes: Tensor, candidates: Tensor) -> list[Tensor]:
        """What comes in at the candidates, (n, m, width) a place."""
        (count, length), device = prefixes.shape, prefixes.device
        ids = torch.cat([prefixes, candidates.expand(count, -1)], dim=1)
        ahead = torch.arange(ids.shape[1], device=device)
        seen = ahead[:, None] >= ahead
        seen[length:, length:] = torch.eye(len(candidates), dtype=torch.bool, device=device)
        blocked = torch.finfo(self.view.model.dtype).min
        mask = torch.where(seen, 0.0, blocked).to(self.view.model.dtype)
        names = [place.names[0] for place in self.places]
        with self.view.capturing(names) as capture:
            self.view.model.call(
                {},
                input_ids=ids,
                attention_mask=mask.expand(count, 1, -1, -1),
                position_ids=ahead.clamp(max=length).expand(count, -1),
            )
        captures = [self.view.by_text(name, capture.seen[name], ids.shape) for name in names]
        return [x[:, length:] for x in captures]

    def _apart(self, prefixes: Tensor, candidates: Tensor) -> list[Tensor]:
        count, many = len(prefixes), len(candidates)
        grown = prefixes.repeat_interleave(many, dim=0)
        ids = torch.cat([grown, candidates.repeat(count)[:, None]], dim=1)
        names = [place.names[0] for place in self.places]
        seen = self.view.seen(names, ids)
        return [seen[name][:, -1].reshape(count, many, -1) for name in names]
