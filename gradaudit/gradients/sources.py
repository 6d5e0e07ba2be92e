"""Tangents of every parameter's gradient: where they come from, and their norms from factors.

A parameter's gradient is G = Δ Aᵀ per group, over all positions and uses (``operations``). In a
direction in which A and Δ move by Ȧ and Δ̇ it moves by Ġ = Δ Ȧᵀ + Δ̇ Aᵀ, and the norms of a
Jacobian are made of those of Ġ over directions, without forming what need not be formed. Three
ways, by cost:

- one position: Ġ has rank two (``rank_two``);
- F norms with T positions and T (in + out) < in · out: from T × T Gram matrices, 90 times as fast
  as forming Ġ for 1152 → 256 channels at 4 positions (benchmarks/speed/fast_paths.py, one thread);
- else Ġ is formed, all directions of a chunk in one matrix product.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from gradaudit.gradients.differentiation import Batch, Differentiation, Variable, at_records
from gradaudit.gradients.jacobian_norms import (
    Directions,
    Norm,
    Norms,
    norms_of,
    rank_two_norms,
    side_by_side,
)
from gradaudit.gradients.operations import Uses
from gradaudit.gradients.trace import Gradients

_BLOCK = 1 << 19


@dataclass(frozen=True)
class Factors:
    """The factors of one parameter's gradients.

    ``right`` is A, (records, groups, in, positions), ``left`` is Δ, (records, groups, out,
    positions).
    """

    right: Tensor
    left: Tensor

    @classmethod
    def of(cls, uses: Uses, deltas: Sequence[Tensor], seen: Mapping[int, Tensor]) -> Self:
        """The factors over all uses of a parameter.

        Of δ, (records, …), and what came in, (records, …), at every site.
        """
        left = over_uses([use.left(deltas[site]) for site, use in uses])
        right = over_uses([use.right(seen[site]) for site, use in uses])
        return cls(right.to(left), left)

    def part(self, at: slice) -> Self:
        """The records at these positions."""
        return replace(self, right=self.right[at], left=self.left[at])

    @property
    def rank_one(self) -> bool:
        """Whether the gradient is one outer product."""
        return self.left.shape[1] == self.left.shape[-1] == 1

    def formed(self, wanted: Collection[Norm]) -> bool:
        """Whether tangents have to be formed for these norms."""
        groups, inputs, positions = self.right.shape[1:]
        return is_formed((groups, self.left.shape[2], inputs), positions, wanted)

    def gradient(self) -> Tensor:
        """G, (records, groups, out, in)."""
        return self.left @ self.right.mT

    def extremes(self) -> tuple[Tensor, Tensor]:
        """The least and the greatest element of each record's gradient, (records,) each."""
        if not self.rank_one:
            return self.gradient().flatten(1).aminmax(dim=1)
        (a, b), (c, d) = (side.flatten(1).aminmax(dim=1) for side in (self.right, self.left))
        corners = torch.stack([a * c, a * d, b * c, b * d])
        return corners.amin(0), corners.amax(0)


def is_formed(block: tuple[int, int, int], positions: int, wanted: Collection[Norm]) -> bool:
    """Whether tangents of a gradient (groups, out, in) have to be formed for these norms.

    Its factors have so many positions.
    """
    groups, outputs, inputs = block
    grams = positions * (inputs + outputs) < inputs * outputs
    return not (groups == positions == 1) and not (set(wanted) == {"f"} and grams)


@dataclass(frozen=True)
class Tangents:
    """Tangents of one parameter's gradients in a number of directions.

    Attributes:
        base: the factors.
        uses: the parameter's sites and operations there.
        seen: tangents of what came in, (records, directions, …), by site; with one record where
            they are the same for all, missing where what came in stays.
        left: Δ̇, (records, groups, directions, out, positions); may be left out where ``product``
            is given and ``base.formed`` holds.
        product: Δ̇ Aᵀ, (records, directions, groups, out, in), where that is known otherwise.
    """

    base: Factors
    uses: Uses
    seen: Mapping[int, Tensor]
    left: Tensor | None
    product: Tensor | None = None

    def norms(self, wanted: Collection[Norm]) -> Norms:
        """Norms of Ġ."""
        if self.base.formed(wanted):
            return side_by_side([norms_of(block.formed(), wanted) for block in self._blocks()])
        assert self.left is not None
        right = self._right()
        if not self.base.rank_one:
            return {"f": self._squares(self.left, right)}
        return rank_two_norms(
            self.base.right[:, 0, :, 0],
            self.base.left[:, 0, :, 0],
            None if right is None else right[:, 0, :, :, 0],
            self.left[:, 0, :, :, 0],
            wanted,
        )

    def formed(self) -> Tensor:
        """Form Ġ, (records, directions, groups, out, in)."""
        moved = self._by_left() if self.product is None else self.product
        right = self._right()
        return moved if right is None else self._by_right(right).add_(moved)

    def _right(self) -> Tensor | None:
        """Compute Ȧ, (records or 1, groups, directions, in, positions); None if A is constant."""
        moving = [(site, use) for site, use in self.uses if use.moves and site in self.seen]
        return over_uses([use.right(self.seen[site]) for site, use in moving]) if moving else None

    def _squares(self, left: Tensor, right: Tensor | None) -> Tensor:
        """Squared F norms of Ġ from Gram matrices, (records, directions)."""
        a, d = self.base.right.unsqueeze(2), self.base.left.unsqueeze(2)
        total = _inner(a.mT @ a, left.mT @ left)
        if right is not None:
            total = total + _inner(right.mT @ right, d.mT @ d)
            total = total + 2 * _inner(a.mT @ right, left.mT @ d)
        return total.clamp(min=0)

    def _by_left(self) -> Tensor:
        """Compute Δ̇ Aᵀ, (records, directions, groups, out, in)."""
        assert self.left is not None
        records, groups, directions, outputs, _ = self.left.shape
        product = self.left.flatten(2, 3) @ self.base.right.mT
        return product.reshape(records, groups, directions, outputs, -1).transpose(1, 2)

    def _by_right(self, right: Tensor) -> Tensor:
        """Compute Δ Ȧᵀ, (records, directions, groups, out, in)."""
        groups, directions = right.shape[1:3]
        tangents, left = right.flatten(2, 3), self.base.left
        if len(tangents) < len(left):
            product = left.transpose(0, 1).flatten(1, 2) @ tangents[0].mT
            by_record = product.reshape(groups, len(left), -1, directions, right.shape[3])
            return by_record.permute(1, 3, 0, 2, 4)
        product = left @ tangents.mT
        return product.reshape(*product.shape[:3], directions, -1).permute(0, 3, 1, 2, 4)

    def _blocks(self) -> Iterator[Self]:
        """The directions in blocks whose Ȧ fits a cache."""
        known = self.product if self.left is None else self.left.transpose(1, 2)
        assert known is not None
        seen = {site: self.seen[site] for site, _ in self.uses if site in self.seen}
        records = max(map(len, seen.values()), default=1)
        elements = records * math.prod(self.base.right.shape[1:])
        size = max(1, _BLOCK // max(1, elements))  # an expert that got no record has none
        for start in range(0, known.shape[1], size):
            at = slice(start, start + size)
            yield replace(
                self,
                seen={site: tangents[:, at] for site, tangents in seen.items()},
                left=None if self.left is None else self.left[:, :, at],
                product=None if self.product is None else self.product[:, at],
            )


def over_uses(parts: Sequence[Tensor]) -> Tensor:
    """Join one parameter's factors over all its uses, as further positions."""
    if len(parts) == 1:
        return parts[0]
    records = max(len(part) for part in parts)
    return torch.cat([part.expand(records, *part.shape[1:]) for part in parts], dim=-1)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Sum over groups of inner products of matrices, (records, groups, directions, …)."""
    return (a * b).sum(dim=(1, 3, 4))


@dataclass(frozen=True)
class FactoredGradients:
    """The gradients of some records, with every parameter's factors.

    Gradients are (records, …), ``seen`` is what came in at every site, tokens included, and factors
    are those of the parameters that are taken apart.
    """

    batch: Batch
    gradients: Gradients
    seen: dict[int, Tensor]
    factors: dict[str, Factors]

    @classmethod
    def of(cls, batch: Batch, way: Differentiation) -> Self:
        """Compute the gradients of a batch."""
        gradients = way.gradients(batch)
        seen = gradients.seen | _tokens(batch)
        factors = {
            name: Factors.of(uses, gradients.deltas, seen)
            for name, uses in batch.trace.uses.items()
        }
        return cls(batch, gradients, seen, factors)

    def part(self, at: slice) -> Self:
        """The records at these positions."""
        gradients, seen = at_records((self.gradients, self.seen), at)
        factors = {name: factors.part(at) for name, factors in self.factors.items()}
        return replace(
            self, batch=self.batch.part(at), gradients=gradients, seen=seen, factors=factors
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
        return self.gradients.whole[parameter].flatten(1).aminmax(dim=1)


NormsByParameter = Iterator[tuple[str, Norms]]


@dataclass(frozen=True)
class General:
    """Differentiates the gradients themselves in every direction."""

    point: FactoredGradients
    way: Differentiation
    by: Variable

    @property
    def title(self) -> str:
        """The way of differentiation, in words."""
        return self.way.title

    def norms(self, directions: Directions, wanted: Collection[Norm]) -> NormsByParameter:
        """Norms of each parameter's Ġ."""
        moved = self.moved(directions.vectors)
        for name, tangent in moved.whole.items():
            yield name, norms_of(tangent.clone(), wanted)
        seen = unstretched(moved.seen)
        for name, uses in self.point.batch.trace.uses.items():
            left = over_uses([use.left(moved.deltas[site]) for site, use in uses])
            yield name, Tangents(self.point.factors[name], uses, seen, left).norms(wanted)

    def part(self, at: slice) -> Self:
        """The source for the records at these positions."""
        return replace(self, point=self.point.part(at))

    def moved(self, directions: Tensor) -> Gradients:
        """Tangents of the gradients, (records, directions, …)."""
        with torch.no_grad():
            return self.way.moved(self.point.batch, directions, self.by)


def unstretched(seen: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Tangents of what came in, one record of those that ``vmap`` only stretched over records."""
    return {site: x[:1] if x.stride(0) == 0 else x for site, x in seen.items()}


def _tokens(batch: Batch) -> dict[int, Tensor]:
    if not any(site.tokens for site in batch.trace.sites):
        return {}
    by_record = [batch.trace.tokens(record) for record in batch.records]
    return {site: torch.stack([tokens[site] for tokens in by_record]) for site in by_record[0]}
