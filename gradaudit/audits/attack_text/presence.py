"""Tests whether a text was in the batch, from each layer separately.

At a linear map the evidence is the energy of what would come in outside the span, meaned over the
text's positions: the less, the likelier. At the table of tokens it is how much the rows of the
text's tokens moved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gradaudit.audits.attack_text.linear_maps import MapsOfOneInput
from gradaudit.audits.attack_text.recovery.candidates import row_strengths
from gradaudit.audits.attack_text.span import Span
from gradaudit.audits.attack_text.view import TextView
from gradaudit.core.statistics.correlation import rank
from gradaudit.core.statistics.laws import permutation_p_value
from gradaudit.models.target import Layer

_CHUNK = 64
_POOL = 8
"""Texts of the length that decoys are chosen from, over how many are wanted."""


@dataclass(frozen=True)
class Texts:
    """Texts of one batch, or decoys.

    Attributes:
        ids: (texts, positions).
        lengths: (texts,) how many of them are filled.
    """

    ids: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Presence:
    """Evidence of texts in one update, by layer.

    Attributes:
        view: the attacker's.
        layers: those that are looked at.
    """

    view: TextView
    layers: tuple[Layer, ...]

    @cached_property
    def places(self) -> dict[str, MapsOfOneInput]:
        """The maps of each layer with a linear map over positions."""
        view = self.view
        named = {
            layer.name: next((name for name in layer.parameter_names if name in view.linear), None)
            for layer in self.layers
        }
        return {
            layer: MapsOfOneInput(view, (name,), local=False)
            for layer, name in named.items()
            if name is not None and name != view.table
        }

    @cached_property
    def table(self) -> str | None:
        """The embedding layer in which tokens are looked up."""
        holding = (x.name for x in self.layers if self.view.table in x.parameter_names)
        return next(holding, None)

    def span(self, layer: str) -> Span | None:
        """The span of a layer's inputs; None where it is void or the layer is no linear map."""
        place = self.places.get(layer)
        return None if place is None else place.span

    def evidence(self, texts: Texts) -> dict[str, Tensor]:
        """Compute evidence against each text's presence, (texts,), for layers that have any."""
        telling = {layer: place for layer, place in self.places.items() if place.span is not None}
        evidence = self._energies(texts, telling)
        rows = row_strengths(self.view)
        if self.table is not None and rows is not None:
            evidence[self.table] = -mean_over(rows[texts.ids.cpu()], texts.lengths.cpu())
        return evidence

    def _energies(self, texts: Texts, telling: Mapping[str, MapsOfOneInput]) -> dict[str, Tensor]:
        names, device = [place.names[0] for place in telling.values()], self.view.model.device
        parts: dict[str, list[Tensor]] = {layer: [] for layer in telling}
        inner = texts.lengths - (1 if self.view.task == "next-token" else 0)
        blocks = zip(
            *(torch.split(x.to(device), _CHUNK) for x in (texts.ids, texts.lengths, inner)),
            strict=True,
        )
        for ids, lengths, counted in blocks if names else ():
            seen = self.view.seen(names, ids, lengths)
            for layer, place in telling.items():
                assert place.span is not None
                energies = place.span.energy(seen[place.names[0]])
                parts[layer].append(mean_over(energies, counted))
        return {layer: torch.cat(found).cpu() for layer, found in parts.items()}


def mean_over(values: Tensor, lengths: Tensor) -> Tensor:
    """Means of (texts, positions) over the first so many positions of each, (texts,); 0 of none."""
    filled = torch.arange(values.shape[1], device=values.device) < lengths[:, None]
    return (values * filled).sum(dim=1) / lengths.clamp(min=1)


def wins(true: Tensor, decoys: Tensor) -> Tensor:
    """Compute the share of its decoys that each text fits better than, ties half, (texts,).

    Args:
        true: (texts,) evidence, of which less is likelier.
        decoys: (texts, decoys).
    """
    behind, level = true[:, None] < decoys, true[:, None] == decoys
    return (behind.double() + level.double() / 2).mean(dim=1)


def p_value(evidence: Sequence[Tensor]) -> float:
    """Compute a p-value: how often a decoy's sum of ranks over the layers is as low.

    Args:
        evidence: of each layer, (1 + decoys,), the text first; less is likelier.
    """
    ranks = np.sum([rank(layer.double().numpy()) for layer in evidence], axis=0)
    return permutation_p_value(-ranks[0], -ranks[1:])


def decoys_of(batch: Texts, pool: Texts, count: int, generator: np.random.Generator) -> Texts:
    """Draw decoys for each text, (texts · count, …), those of one text together.

    A decoy is another text at least as long, cut to the length; of several drawn at random those
    are taken whose tokens are as frequent, by the mean logarithm, as the text's, and that begin no
    text of the batch. A last token that ends most texts of the pool ends the decoys too.

    Args:
        batch: the texts.
        pool: other texts of the same kind, one at least.
        count: decoys for each text.
        generator: draws them.
    """
    # Logarithms of how often each token occurs, and once more, (vocabulary,).
    counts = torch.bincount(
        pool.ids[_filled(pool)], minlength=1 + int(max(pool.ids.max(), batch.ids.max()))
    )
    frequencies = (counts + 1).double().log()
    last = _common_end(pool)
    rows: list[Tensor] = []
    for ids, length in zip(batch.ids, batch.lengths.tolist(), strict=True):
        drawn = _drawn(pool, length, count * _POOL, generator)
        if last is not None and int(ids[length - 1]) == last:
            drawn[:, length - 1] = last
        far = (frequencies[drawn[:, :length]].mean(1) - frequencies[ids[:length]].mean()).abs()
        far[(drawn[:, None, :length] == batch.ids[:, :length]).all(dim=2).any(dim=1)] = torch.inf
        rows.append(drawn[far.argsort(stable=True)[:count]])
    return Texts(torch.cat(rows), batch.lengths.repeat_interleave(count))


def _drawn(pool: Texts, length: int, count: int, generator: np.random.Generator) -> Tensor:
    """Draw so many texts of this length, none twice unless there are too few.

    Where none is as long, others go on with tokens that are drawn from all.
    """
    long = (pool.lengths >= length).nonzero()[:, 0].numpy()
    if not len(long):
        long = pool.lengths.argsort(descending=True)[:count].numpy()
    chosen = torch.from_numpy(generator.choice(long, count, replace=count > len(long)))
    tokens = pool.ids[_filled(pool)]
    more = tokens[torch.from_numpy(generator.integers(len(tokens), size=(count, length)))]
    ids = pool.ids[chosen].clone()
    ids[:, :length] = torch.where(_filled(pool)[chosen, :length], ids[:, :length], more)
    ids[:, length:] = 0
    return ids


def _common_end(pool: Texts) -> int | None:
    """Find the token that ends more than half of the texts."""
    ends = pool.ids[torch.arange(len(pool)), pool.lengths - 1]
    last = int(ends.mode().values)
    return last if 2 * int((ends == last).sum()) > len(ends) else None


def _filled(pool: Texts) -> Tensor:
    return torch.arange(pool.ids.shape[1]) < pool.lengths[:, None]
