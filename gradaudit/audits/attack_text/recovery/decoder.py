"""Searches texts of a causal model token by token (Petrov et al. 2024, section 4.2).

A prefix is continued by each token that may stand next, and kept where what then comes in behind
the first block lies in the span there. Chance is what the same tokens make behind wrong prefixes;
the maps decide whose spans noise has taken nothing from. Where there are none, texts are searched
one after the other, and prefixes are ranked by their misfits, by the model's own prediction of each
token, and by how often the texts before hold it already.

Inputs of the maps for every continuation of a prefix, in one run of a causal model.

All continuations of a prefix stand behind it in one text, at the same position, and each sees the
prefix and itself: a mask of attention and position numbers say so (Miao et al. 2024, SpecInfer,
tree attention). A model that does not take these is run on every continuation by itself; which it
is is found by trying.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.attack_text.linear_maps import MapsOfOneInput
from gradaudit.audits.attack_text.recovery.candidates import SEPARATE, TokenCandidates, limit_of
from gradaudit.audits.attack_text.view import TextView
from gradaudit.progress import Advance

_ROOM = 1 << 27
"""Elements of attention that a run may take,"""
_HEADS = 16
"""with so many heads."""
_ALIKE = 1e-3
_WRONG = 8
"""Wrong prefixes, behind which the candidates' misfits are what chance makes."""
_BEAM = 8
"""Prefixes that are kept, over the number of texts."""
_CHILDREN = 4
"""Continuations of one prefix that are kept where they are only ranked."""
_EMPTY = torch.empty(1, 0, dtype=torch.long)
_USED = 3.0
"""What each time that a token was used before counts, over a standard deviation of misfits,"""
_PRIOR = 0.5
"""and what a nat of the model's own prediction does: of six updates of 48 words in 48 dimensions
(``benchmarks/coverage/text_failures.py``) ROUGE-2 was .23, .64, .73 and .77 with 0, 1, 2 and 4 of
the first, and .56 and .64 with 1 and .5 of the second where the first was 1."""


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
        """Make the continuations, after a test on one text that cached keys change nothing."""
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
        """Inputs of the maps at the candidates, (n, m, width) for each place."""
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
        longer = prefixes.repeat_interleave(many, dim=0)
        ids = torch.cat([longer, candidates.repeat(count)[:, None]], dim=1)
        names = [place.names[0] for place in self.places]
        seen = self.view.seen(names, ids)
        return [seen[name][:, -1].reshape(count, many, -1) for name in names]


@dataclass(frozen=True)
class DecodedText:
    """A decoded text, whole or in part, and the mean logarithm of its misfits."""

    tokens: tuple[int, ...]
    score: float


@dataclass
class PrefixSearch:
    """The search's partial texts, extended by one token at a time.

    Attributes:
        continuations: at the maps whose spans count.
        candidates: what may stand where.
        certain: whether what came in differs from chance; else prefixes are only ranked.
        generator: of wrong prefixes.
        used: (vocabulary,) how often each token stands in texts that were found before.
        alive: (n, p) prefixes.
        scores: (n,) sums of their logarithmic misfits, falling with how well they fit.
        ended: texts that cannot be continued.
    """

    continuations: Continuations
    candidates: TokenCandidates
    certain: bool
    generator: torch.Generator
    used: Tensor
    alive: Tensor = field(default_factory=lambda: _EMPTY)
    scores: Tensor = field(default_factory=lambda: torch.zeros(1))
    ended: list[DecodedText] = field(default_factory=list)

    def grow(self, length: int, advance: Advance) -> None:
        """Continue all prefixes by this number of tokens, as long as a prefix is left."""
        for position in range(length):
            if not len(self.alive) or not len(self.candidates.at(position)):
                break
            self.step(position)
            advance(1)

    def step(self, position: int) -> None:
        """Continue all prefixes by one token."""
        view, tokens = self.continuations.view, self.candidates.at(position)
        device = view.model.device
        misfits = self.continuations.misfit(self.alive.to(device), tokens.to(device))
        logs = misfits.clamp(min=1e-30).log()
        costs = logs.mean(dim=0) if self.certain else self._ranked(logs, tokens)
        within = self._within(misfits, costs, tokens, position)
        over = ~within.any(dim=1)
        self.ended += _decoded(self.alive[over], self.scores[over])
        rows, columns = within.nonzero(as_tuple=True)
        extended = torch.cat([self.alive[rows], tokens[columns, None]], dim=1)
        total = self.scores[rows] + costs[rows, columns]
        kept = total.argsort()[: _BEAM * view.sequences]
        self.alive, self.scores = extended[kept], total[kept]

    def _ranked(self, logs: Tensor, tokens: Tensor) -> Tensor:
        """Costs (prefixes, tokens) where misfits only rank: their mean over places, standardised.

        To it is added how unlikely the model itself holds the token to be next (Balunović et al.
        2022, LAMP, section 4), where it predicts tokens, and whether other texts hold it already.
        """
        flat = logs.flatten(1)
        spread = flat.std(dim=1, correction=0).clamp(min=1e-12)
        alike = ((logs - flat.mean(dim=1)[:, None, None]) / spread[:, None, None]).sum(dim=0)
        likely = self.continuations.view.following(self.alive)
        new = _PRIOR * likely[:, tokens] - _USED * self.used[tokens]
        costs: Tensor = alike / len(logs) ** 0.5 - new
        return costs

    def _within(self, misfits: Tensor, costs: Tensor, tokens: Tensor, position: int) -> Tensor:
        """Which continuations (prefixes, tokens) fit at every place, from misfits (places, …)."""
        if self.certain:
            limits = self._limits(tokens, position)
            return (misfits < limits[:, None, None]).all(dim=0)
        count = _CHILDREN if position else _BEAM * self.continuations.view.sequences
        best = costs.argsort(dim=1)[:, :count]
        return torch.zeros(misfits.shape[1:], dtype=torch.bool).scatter_(1, best, value=True)

    def _limits(self, tokens: Tensor, position: int) -> Tensor:
        """Set each place's limit between misfits of inputs and of chance."""
        view, generator = self.continuations.view, self.generator
        wrong = torch.randint(view.vocabulary, (_WRONG, position), generator=generator)
        if position == 0:
            size = max(64, len(tokens))
            tokens = torch.randint(view.vocabulary, (size,), generator=generator)
        device = view.model.device
        null = self.continuations.misfit(wrong.to(device), tokens.to(device))
        return torch.tensor([limit_of(place.flatten()) for place in null]).clamp(min=SEPARATE)


def search_prefixes(
    continuations: Continuations, candidates: TokenCandidates, *, seed: int, advance: Advance
) -> list[DecodedText]:
    """Search the texts of one update, best first.

    Args:
        continuations: at maps behind attention.
        candidates: what may stand where.
        seed: of the wrong prefixes.
        advance: called for every position.
    """
    clear = tuple(place for place in continuations.places if place.clear)
    whole = tuple(place for place in continuations.places if place.whole)
    places = clear or whole[-1:] or continuations.places
    growing = PrefixSearch(
        replace(continuations, places=places),
        candidates,
        bool(clear),
        torch.Generator().manual_seed(seed),
        torch.zeros(continuations.view.vocabulary),
    )
    if clear:
        growing.grow(max(continuations.view.inner), advance)
    ended = [*growing.ended, *_decoded(growing.alive, growing.scores)]
    if not ended:  # noise or dropout keeps what came in out of the span
        return list(_one_by_one(replace(growing, certain=False), advance))
    return sorted(ended, key=lambda text: (_repeats(text), -len(text.tokens), text.score))


def _one_by_one(search: PrefixSearch, advance: Advance) -> Iterator[DecodedText]:
    """Search the best text of each length that the attacker knows, one after the other."""
    used = search.used.clone()
    for length in search.continuations.view.inner:
        growing = replace(search, used=used, alive=_EMPTY, scores=torch.zeros(1), ended=[])
        growing.grow(length, advance)
        for text in _decoded(growing.alive, growing.scores)[:1]:
            used += torch.bincount(torch.tensor(text.tokens), minlength=len(used))
            yield text


def _decoded(texts: Tensor, scores: Tensor) -> list[DecodedText]:
    pairs = zip(texts.tolist(), scores.tolist(), strict=True)
    return [DecodedText(tuple(text), score / len(text)) for text, score in pairs if text]


def _repeats(text: DecodedText) -> bool:
    """Whether a text repeats one token, which fits wherever its first token fits."""
    return len(text.tokens) > 1 and len(set(text.tokens)) == 1
