"""Splits a model's linear maps by whether their input depends on the token or its context.

How much low-rank adapters give away, predicted from their ranks before anything is observed.

An adapter's first matrix A (r, width) has the gradient Σ_t (Bᵀδ_t) a_tᵀ of rank r at most. Adapters
that share what comes in are taken together, so that their ranks add up: above the number of tokens
the span holds all that came in; below it a share of its energy, which is still more than a decoy's.
The prediction is what the attacker itself meets with tokens as frequent as in other texts, and
random numbers in place of the Bᵀδ_t. Tokens that are frequent stand in a batch several times, and
are named several times: of a GPT-2 of 192 dimensions and texts of Zipf's law with rank 4, .25 was
predicted of 6 batches and .29 measured (.08 predicted if each token of the vocabulary were as
likely; ``benchmarks/coverage/fine_tuning.py``).
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.attack_text.span import Span
from gradaudit.audits.attack_text.view import TextView
from gradaudit.core.randomness import torch_rng

_BLOCK = 4
"""Maps behind attention up to the next block's: its output, a network of two, the next block."""

_FULL = 0.9
"""The rank over the highest of a block's maps, from which on one holds all that came in."""
_CHUNK = 512


@dataclass(frozen=True)
class MapsOfOneInput:
    """Linear maps with the same input.

    Attributes:
        view: the attacker's.
        names: of their weights.
        local: whether what comes in depends on the token and its position alone.
        strongest: whether the strongest directions are a span where it is void.
    """

    view: TextView
    names: tuple[str, ...]
    local: bool
    strongest: bool = False

    @cached_property
    def span(self) -> Span | None:
        """The span of the maps' inputs; None where it is void, or the maps are not shared.

        The rows of several rounds' gradients lie in one span as far as the texts bring in the same
        there. So many of the newest rounds are joined as leave nothing but noise behind the tokens:
        what moved between the rounds stands out of it.
        """
        rounds = (self.view, *self.view.earlier[::-1])
        joined: list[Tensor] = []
        span: Span | None = None
        for view in rounds:
            joined += [view.gradient(name) for name in self.names if name in view.update]
            wider = Span.of(joined, sum(self.view.inner)) if joined else None
            if span is not None and (wider is None or not wider.leaves_noise(sum(view.inner))):
                break
            span = wider
        if span is None and self.strongest and self.shared:
            newest = [self.view.gradient(name) for name in self.names if name in self.view.update]
            return Span.strongest(newest, sum(self.view.inner))
        return span

    @property
    def shared(self) -> bool:
        """Whether the gradient of one of the maps is shared."""
        return any(name in self.view.update for name in self.names)

    @property
    def width(self) -> int:
        """The number of dimensions of the maps' input."""
        name = self.names[0]
        return self.view.model.parameters[name].shape[self.view.linear[name]]

    @property
    def outputs(self) -> int:
        """The number of outputs that the maps have together."""
        return sum(self.view.model.parameters[name].numel() for name in self.names) // self.width

    @property
    def whole(self) -> bool:
        """Whether there is a span, and it contains all inputs."""
        return self.span is not None and self.span.whole

    @property
    def clear(self) -> bool:
        """Whether noise hides no direction of the span."""
        return self.span is not None and self.span.clear

    @property
    def rank(self) -> int:
        """Rank of the span; 0 without one."""
        return 0 if self.span is None else self.span.rank

    def came_in(self, ids: Tensor) -> Tensor:
        """Compute the maps' inputs for texts (texts, positions), (texts, positions, width)."""
        return self.view.seen(self.names[:1], ids)[self.names[0]]

    def misfit(self, ids: Tensor) -> Tensor:
        """How badly texts fit the span, (texts, positions); see :meth:`Span.misfit`."""
        assert self.span is not None
        return self.span.misfit(self.came_in(ids))

    def cost(self, ids: Tensor) -> Tensor:
        """Measure how badly texts fit, (texts, positions): misfits, or else energies."""
        return self.misfit(ids) if self.whole else self.energy(ids)

    def energy(self, ids: Tensor) -> Tensor:
        """The share of energy outside the span, (texts, positions)."""
        assert self.span is not None
        return self.span.energy(self.came_in(ids))

    def outside(self, ids: Tensor) -> Tensor:
        """Compute the part of texts' inputs outside the span, (texts, positions, width)."""
        assert self.span is not None
        vectors = self.came_in(ids)
        outside: Tensor = self.span.residual(vectors) / vectors.norm(dim=2, keepdim=True)
        return outside


@dataclass(frozen=True)
class Structure:
    """A model's linear maps, in order.

    Attributes:
        causal: whether no token sees a later one.
        positional: whether the same token is different at different positions, at local maps.
    """

    places: tuple[MapsOfOneInput, ...]
    causal: bool
    positional: bool

    @classmethod
    def of(cls, view: TextView) -> Self:
        """Find the structure by running the model on texts that share some of their tokens."""
        names = [group[0] for group in view.groups]
        seen = view.seen(names, _trials(view).to(view.model.device))
        local = [_same(seen[name][0, -1], seen[name][1, -1]) for name in names]
        places = [
            MapsOfOneInput(view, group, here)
            for group, here in zip(view.groups, local, strict=True)
            if view.head not in group
        ]
        mixed = [name for name, here in zip(names, local, strict=True) if not here]
        causal = all(_same(seen[name][0, 0], seen[name][2, 0]) for name in mixed)
        alone = [name for name, here in zip(names, local, strict=True) if here]
        positional = any(not _same(seen[name][3, 0], seen[name][3, -1]) for name in alone)
        return cls(tuple(places), causal, positional)

    @property
    def first(self) -> MapsOfOneInput | None:
        """The local maps with the span of highest rank, whole ones before others."""
        local = [place for place in self.places if place.local and place.span]
        return max(local, key=lambda place: (place.whole, place.rank), default=None)

    @property
    def strongest(self) -> Self:
        """The structure whose maps keep the strongest directions where they have no whole span."""
        return replace(self, places=tuple(replace(p, strongest=True) for p in self.places))

    @property
    def mixed(self) -> tuple[MapsOfOneInput, ...]:
        """The first maps with whole spans that depend on the context, up to the end of a block.

        What attention adds up is linear in what it sees, so that mixtures of several texts lie in
        its span too; behind the block's network they do not. Where spans are strongest directions,
        the first maps with any span.
        """
        some = (p for p in self.places if not p.local and (p.whole or (p.strongest and p.span)))
        return tuple(islice(some, _BLOCK))

    @property
    def deciding(self) -> tuple[MapsOfOneInput, ...]:
        """The maps whose spans hold all inputs.

        Left out are those with a rank far below the others': what came in has no gradient of its
        own there, as in the last block of a model that is asked for a class.
        """
        most = max((place.rank for place in self.mixed if place.whole), default=0)
        return tuple(place for place in self.mixed if place.rank >= _FULL * most)


def _trials(view: TextView) -> Tensor:
    """Make trial texts: one, others that share its last or first token, one token repeated."""
    generator = torch.Generator().manual_seed(0)
    some = torch.randint(view.vocabulary, (view.length,), generator=generator)
    other = (some + 1) % view.vocabulary
    last, first = other.clone(), other.clone()
    last[-1], first[0] = some[-1], some[0]
    return torch.stack([some, last, first, some[:1].expand(view.length)])


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def adapters(structure: Structure) -> MapsOfOneInput | None:
    """The first low-rank maps that see each token by itself; None where there are none."""
    local = (place for place in structure.places if place.local)
    return next((place for place in local if place.outputs < place.width), None)


def predicted(
    view: TextView, structure: Structure, place: MapsOfOneInput, pool: Tensor, seed: int
) -> float:
    """Predict the share of a batch's tokens that an attack on low-rank adapters recovers.

    It is none where adapters have no gradient, as at the start, when their second matrix is zero;
    and every token whose input has a gradient where the ranks are above their number, also where
    several texts have the same token at one place (of a GPT-2 with ranks of 80, 96 and 128 .94 were
    predicted and .94 measured, ``benchmarks/coverage/fine_tuning.py``).

    Args:
        view: of which only the texts' lengths are looked at.
        structure: of the model.
        place: the adapters.
        pool: (tokens,) of other texts, each as often as it is there.
        seed: of tokens and gradients.
    """
    if place.span is None:
        return 0.0
    generator = torch_rng(seed, "text", "adapters")
    count = sum(view.inner)
    tokens = pool[torch.randint(len(pool), (count,), generator=generator)]
    positions = torch.cat([torch.arange(length) for length in view.inner])
    if not structure.positional:
        positions = torch.zeros_like(positions)
    width = int(positions.max()) + 1

    def vectors(tokens: Tensor) -> Tensor:
        """Compute the input of each token at every position, (tokens, positions, width)."""
        ids = tokens.to(view.model.device)[:, None].expand(-1, width)
        return place.came_in(ids).cpu()

    came_in = vectors(tokens)[range(count), positions]
    rows = place.outputs * (1 + len(view.earlier))  # ranks of rounds on a frozen base add up
    drawn = torch.randn(rows, count, generator=generator)
    span = Span.of([drawn @ came_in], count)
    if span is None:
        return 0.0
    if span.whole:
        return count / view.tokens
    blocks = torch.split(torch.arange(view.vocabulary), _CHUNK)
    costs = torch.cat([span.energy(vectors(block)) for block in blocks])
    room = torch.bincount(positions, minlength=width)
    ranked = costs.argsort(dim=0)
    named = Counter(token for at, some in enumerate(room) for token in ranked[:some, at].tolist())
    return (named & Counter(tokens.tolist())).total() / view.tokens
