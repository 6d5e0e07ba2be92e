"""Norms of a Jacobian, and the directions that they are taken over.

The norms are F, the sum of absolute entries and the largest entry. They are accumulated over parts
of a Jacobian (parameters, columns), so F is held squared. Directions are all columns, some of them,
or Gaussian probes.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gradaudit.randomness import Seed, Word, rng

Norm = Literal["f", "1", "inf"]
Norms = dict[Norm, Tensor]
"""F squared and sums of each direction, (records, directions); the largest of all, (records, 1)."""
NORMS: tuple[Norm, ...] = ("f", "1", "inf")


def norms_of(tangents: Tensor, wanted: Collection[Norm]) -> Norms:
    """The norms of tangents (records, directions, …), which are overwritten."""
    entries = tuple(range(2, tangents.dim()))
    norms: Norms = {}
    if "1" in wanted or "inf" in wanted:
        tangents.abs_()
    if "1" in wanted:
        norms["1"] = tangents.sum(entries)
    if "inf" in wanted:
        norms["inf"] = tangents.amax((1, *entries)).unsqueeze(1)
    if "f" in wanted:
        norms["f"] = tangents.square_().sum(entries)
    return norms


def joined(parts: Iterable[Norms]) -> Norms:
    """The norms of several parts' elements together."""
    return reduce(
        lambda a, b: {n: torch.maximum(a[n], b[n]) if n == "inf" else a[n] + b[n] for n in a}, parts
    )


def over_directions(norms: Norms) -> Norms:
    """The norms of all directions' tangents together, (records, 1)."""
    return {n: x if n == "inf" else x.sum(1, keepdim=True) for n, x in norms.items()}


def side_by_side(chunks: Sequence[Norms]) -> Norms:
    """The norms of several chunks of directions, one after the other."""
    together = {norm: torch.cat([chunk[norm] for chunk in chunks], dim=1) for norm in chunks[0]}
    return {n: x.amax(1, keepdim=True) if n == "inf" else x for n, x in together.items()}


def one_after_the_other(parts: Sequence[Norms]) -> Norms:
    """The norms of several parts' records, one part after the other."""
    return {norm: torch.cat([part[norm] for part in parts]) for norm in parts[0]}


@dataclass(frozen=True)
class Directions:
    """A chunk of directions.

    ``vectors`` are (directions, …) in the shape of what is varied, ``columns`` the consecutive
    elements that they are the unit vectors of, None where they are not such.
    """

    vectors: Tensor
    columns: slice | None = None


@dataclass(frozen=True)
class Columns:
    """Unit vectors of some elements: over all of them, the sum of squares is ‖J‖_F²."""

    elements: range | tuple[int, ...]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.elements)

    def chunks(self, like: Tensor, size: int) -> Iterator[Directions]:
        """Unit vectors."""
        for start in range(0, len(self), size):
            some = self.elements[start : start + size]
            at = torch.as_tensor(some, device=like.device).unsqueeze(1)
            units = like.new_zeros(len(some), like.numel()).scatter_(1, at, 1)
            consecutive = slice(some.start, some.stop) if isinstance(some, range) else None
            yield Directions(units.reshape(-1, *like.shape), consecutive)


@dataclass(frozen=True)
class Gaussian:
    """Standard normal vectors v: E‖Jv‖² = ‖J‖_F². The k-th depends on the seed and k alone."""

    count: int
    seed: int

    def __len__(self) -> int:
        """How many there are."""
        return self.count

    def chunks(self, like: Tensor, size: int) -> Iterator[Directions]:
        """Probes."""
        for start in range(0, self.count, size):
            some = range(start, min(start + size, self.count))
            probes = [gaussian(like, self.seed, "jacobian", "probe", k) for k in some]
            yield Directions(torch.stack(probes))


Plan = Columns | Gaussian
"""A sequence of directions that is the same for every record."""


def gaussian(like: Tensor, seed: Seed, *words: Word) -> Tensor:
    """Standard normal numbers in the shape, type and place of ``like``; same on every device."""
    drawn = torch.from_numpy(rng(seed, *words).standard_normal(like.numel()))
    return drawn.to(like, non_blocking=True).reshape(like.shape)


class Pass(NamedTuple):
    """Directions and the norms to take over them.

    All directions together make one number where ``total``, else each makes a sample, multiplied by
    ``factor`` to estimate the whole without bias. F comes squared.
    """

    plan: Plan
    norms: tuple[Norm, ...]
    total: bool
    factor: float = 1.0


def exact_norms(size: int) -> list[Pass]:
    """All norms, over all columns."""
    return [Pass(Columns(range(size)), NORMS, total=True)]


def by_probes(size: int, probes: int, seed: int) -> list[Pass]:
    """F by Gaussian probes and the 1-norm by as many sampled columns; exactly, if that is less."""
    if probes >= size:
        return exact_norms(size)
    columns = rng(seed, "jacobian", "columns").choice(size, size=probes, replace=False)
    return [
        Pass(Gaussian(probes, seed), ("f",), total=False),
        Pass(Columns(tuple(columns.tolist())), ("1",), total=False, factor=size),
    ]
