"""Norms of a Jacobian and the directions that they are taken over; norms at rank two.

The norms are F, the sum of absolute entries and the largest entry. They are accumulated over parts
of a Jacobian (parameters, columns), so F is held squared. Directions are all columns, some of them,
or Gaussian probes.

Norms of matrices of rank two, ȧ δᵀ + a δ̇ᵀ: the tangents of a gradient a δᵀ.

A fully connected layer's gradient for one record has rank one. F needs no matrix: with ȧ = α a +
ȧ⊥, ‖ȧ δᵀ + a δ̇ᵀ‖² = ‖a‖² ‖δ̇ + α δ‖² + ‖ȧ⊥‖² ‖δ‖². For the other norms matrices are formed, blocks
of directions and rows at a time.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gradaudit.core.randomness import Seed, Word, rng

Norm = Literal["f", "1", "inf"]
Norms = dict[Norm, Tensor]
"""F squared and sums of each direction, (records, directions); the largest of all, (records, 1)."""
NORMS: tuple[Norm, ...] = ("f", "1", "inf")
_BLOCK = 1 << 19


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
        """Return the number of directions."""
        return len(self.elements)

    def chunks(self, like: Tensor, size: int) -> Iterator[Directions]:
        """Yield the unit vectors in chunks."""
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
        """Return the number of directions."""
        return self.count

    def chunks(self, like: Tensor, size: int) -> Iterator[Directions]:
        """Yield the random probes in chunks."""
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
    """Passes that give all norms, over all columns."""
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


def rank_two_norms(
    a: Tensor, d: Tensor, a_dot: Tensor | None, d_dot: Tensor, wanted: Collection[Norm]
) -> Norms:
    """The norms of ȧ δᵀ + a δ̇ᵀ.

    a is (records, in), δ (records, out), ȧ (records or 1, directions, in), None for zero, and δ̇
    (records, directions, out).
    """
    if a_dot is None:
        a_dot = a.new_zeros(1, d_dot.shape[1], a.shape[1])
    parts = a, d, a_dot.expand(len(a), -1, -1), d_dot
    norms: Norms = {"f": squares(*parts)} if "f" in wanted else {}
    if entries := [norm for norm in wanted if norm != "f"]:
        records = [_of_entries(*part, entries) for part in zip(*parts, strict=True)]
        norms |= one_after_the_other(records)
    return norms


def _of_entries(
    a: Tensor, d: Tensor, a_dot: Tensor, d_dot: Tensor, wanted: Collection[Norm]
) -> Norms:
    """Norms of one record's tangents, formed some directions and rows at a time."""
    rows = max(1, _BLOCK // len(a))
    size = max(1, _BLOCK // (len(a) * min(rows, len(d))))
    chunks = []
    for x, y in zip(torch.split(a_dot, size), torch.split(d_dot, size), strict=True):
        blocks = zip(torch.split(d, rows), torch.split(y, rows, dim=1), strict=True)
        formed = ((u[:, None] * x[:, None]).addcmul_(a, v[:, :, None])[None] for u, v in blocks)
        chunks.append(joined(norms_of(block, wanted) for block in formed))
    return side_by_side(chunks)


def squares(a: Tensor, d: Tensor, a_dot: Tensor, d_dot: Tensor) -> Tensor:
    """Squared F norms, (records, directions), as a sum of two squares."""
    size = (a * a).sum(1)[:, None]
    alpha = torch.where(size > 0, torch.einsum("rni,ri->rn", a_dot, a) / size, 0)[:, :, None]
    across = (a_dot - alpha * a[:, None]).square().sum(2) * (d * d).sum(1)[:, None]
    return across + (d_dot + alpha * d[:, None]).square().sum(2) * size
