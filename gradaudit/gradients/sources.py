"""Where the tangents of every parameter's gradient come from, chunk of directions by chunk."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gradaudit.gradients.differentiation import Batch, Differentiation, Variable
from gradaudit.gradients.fast.factors import Factors, Tangents, over_uses
from gradaudit.gradients.norms import Directions, Norm, Norms, norms_of
from gradaudit.gradients.trace import Gradients


@dataclass(frozen=True)
class Point:
    """The gradients of some records, with every parameter's factors.

    Attributes:
        batch: the records.
        gradients: theirs, (records, …).
        seen: what came in at every site, tokens included.
        factors: by parameter that is taken apart.
    """

    batch: Batch
    gradients: Gradients
    seen: dict[int, Tensor]
    factors: dict[str, Factors]

    @classmethod
    def of(cls, batch: Batch, way: Differentiation) -> Point:
        """Compute the gradients of a batch."""
        gradients = way.gradients(batch)
        seen = gradients.seen | _tokens(batch)
        factors = {
            name: Factors.of(uses, gradients.deltas, seen)
            for name, uses in batch.trace.uses.items()
        }
        return cls(batch, gradients, seen, factors)

    def part(self, at: slice) -> Point:
        """The records at these positions."""
        return Point(
            self.batch.part(at),
            tree_map(lambda tensor: tensor[at], self.gradients),
            {site: came_in[at] for site, came_in in self.seen.items()},
            {name: factors.part(at) for name, factors in self.factors.items()},
        )

    def ranges(self, parameters: Sequence[str]) -> Tensor:
        """Max − min over the elements of each record's gradient by these parameters, (records,)."""
        lows, highs = zip(*map(self._extremes, parameters), strict=True)
        ranges: Tensor = torch.stack(highs).amax(0) - torch.stack(lows).amin(0)
        return ranges

    def _extremes(self, parameter: str) -> tuple[Tensor, Tensor]:
        """The least and greatest element of each record's gradient, (records,) each."""
        if parameter in self.factors:
            return self.factors[parameter].extremes()
        low, high = self.gradients.whole[parameter].flatten(1).aminmax(dim=1)
        return low, high


class Source(Protocol):
    """Gives every parameter's tangents in some directions."""

    @property
    def title(self) -> str:
        """How, in words for the report."""
        ...

    @property
    def point(self) -> Point:
        """The gradients that move."""
        ...

    def part(self, at: slice) -> Source:
        """The source for the records at these positions."""
        ...

    def tangents(
        self, directions: Directions, wanted: Collection[Norm]
    ) -> Iterator[tuple[str, Tangents | Whole]]:
        """Each parameter's Ġ, to take the wanted norms of before the next one is asked for."""
        ...


@dataclass(frozen=True)
class Whole:
    """How the gradients by a parameter that is not taken apart move: (records, directions, …)."""

    moved: Tensor

    def norms(self, wanted: Collection[Norm]) -> Norms:
        """Norms of Ġ."""
        return norms_of(self.moved.clone(), wanted)


@dataclass(frozen=True)
class General:
    """Differentiates the gradients themselves in every direction."""

    point: Point
    way: Differentiation
    by: Variable

    @property
    def title(self) -> str:
        """How it differentiates."""
        return self.way.title

    def tangents(
        self, directions: Directions, wanted: Collection[Norm]
    ) -> Iterator[tuple[str, Tangents | Whole]]:
        """Each parameter's Ġ."""
        moved = self.moved(directions.vectors)
        for name, tangent in moved.whole.items():
            yield name, Whole(tangent)
        seen = unstretched(moved.seen)
        for name, uses in self.point.batch.trace.uses.items():
            left = over_uses([use.left(moved.deltas[site]) for site, use in uses])
            yield name, Tangents(self.point.factors[name], uses, seen, left)

    def part(self, at: slice) -> General:
        """The source for the records at these positions."""
        return replace(self, point=self.point.part(at))

    def moved(self, directions: Tensor) -> Gradients:
        """How the gradients move, (records, directions, …)."""
        with torch.no_grad():
            return self.way.moved(self.point.batch, directions, self.by)


def unstretched(seen: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Tangents of what came in, one record of those that ``vmap`` only stretched over records."""
    return {site: x[:1] if x.stride(0) == 0 else x for site, x in seen.items()}


def _tokens(batch: Batch) -> dict[int, Tensor]:
    if batch.trace.embedded is None:
        return {}
    by_record = [batch.trace.tokens(record) for record in batch.records]
    return {site: torch.stack([tokens[site] for tokens in by_record]) for site in by_record[0]}
