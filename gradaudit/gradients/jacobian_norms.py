"""Norms of a Jacobian and the directions that they are taken over; norms at rank two.

The norms are F, the sum of absolute entries and the largest entry. They are accumulated over parts
of a Jacobian (parameters, columns), so F is held squared. Directions are all columns, some of them,
or Gaussian probes.

Norms of matrices of rank two, ȧ δᵀ + a δ̇ᵀ: the tangents of a gradient a δᵀ.

A fully connected layer's gradient for one record has rank one, and its weight may have tens of
millions of elements. None of the norms needs them all:

- F, exactly: with ȧ = α a + ȧ⊥, ‖ȧ δᵀ + a δ̇ᵀ‖² = ‖a‖² ‖δ̇ + α δ‖² + ‖ȧ⊥‖² ‖δ‖².
- The sum of absolute entries, exactly: entry (j, i) is u_i · v_j with u_i = (δ̇_i, δ_i) and
  v_j = (a_j, ȧ_j). Turned into one half-plane and sorted by angle, the v_j before the normal of
  u_i have products of one sign and those after it of the other, so Σ_j |u_i · v_j| takes two
  prefix sums: O((in + out) log in) for a sum of in · out terms.
- The largest entry, exactly: only pairs (direction, i) whose bound |δ̇_i| max|a| + |δ_i| max|ȧ|
  exceeds the largest entry found so far are looked at.

All three norms of 4096 → 512 take an 18th of the time that forming them does, of 400 → 120 half
(benchmarks/speed/fast_paths.py, one thread). Smaller matrices are formed instead, blocks of
directions at a time.
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
_FORMED_UP_TO = 1 << 16
_BLOCK = 1 << 19
_PAIRS = 256


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
    entries = [norm for norm in wanted if norm != "f"]
    if entries and a.shape[1] * d.shape[1] <= _FORMED_UP_TO:
        records = [
            side_by_side([norms_of(block, entries) for block in _formed(*part)])
            for part in zip(*parts, strict=True)
        ]
        return norms | one_after_the_other(records)
    if "1" in wanted:
        norms["1"] = absolute_sums(*parts)
    if "inf" in wanted:
        norms["inf"] = torch.stack([_largest(*part) for part in zip(*parts, strict=True)])
    return norms


def squares(a: Tensor, d: Tensor, a_dot: Tensor, d_dot: Tensor) -> Tensor:
    """Squared F norms, (records, directions), as a sum of two squares."""
    size = (a * a).sum(1)[:, None]
    alpha = torch.where(size > 0, torch.einsum("rni,ri->rn", a_dot, a) / size, 0)[:, :, None]
    across = (a_dot - alpha * a[:, None]).square().sum(2) * (d * d).sum(1)[:, None]
    return across + (d_dot + alpha * d[:, None]).square().sum(2) * size


def absolute_sums(a: Tensor, d: Tensor, a_dot: Tensor, d_dot: Tensor) -> Tensor:
    """Sums of absolute entries, (records, directions), by sorting directions in the plane."""
    largest, moved = a.abs().amax(1)[:, None], a_dot.abs().amax(2)
    scale = torch.where((largest > 0) & (moved > 0), largest / moved, 1)[:, :, None]
    points = torch.stack([a[:, None].expand_as(a_dot), a_dot * scale], dim=-1)
    queries = torch.stack([d_dot, (d[:, None] / scale).expand_as(d_dot)], dim=-1)
    angles, points = _upper_half(points)
    angles, order = angles.sort(dim=2)
    sums = points.gather(2, order[..., None].expand_as(points)).cumsum(2)
    before = torch.cat([torch.zeros_like(sums[:, :, :1]), sums], dim=2)
    normals, _ = _upper_half(torch.stack([queries[..., 1], -queries[..., 0]], dim=-1))
    place = torch.searchsorted(angles, normals)[..., None].expand_as(queries)
    signed = 2 * before.gather(2, place) - sums[:, :, -1:]
    return (queries * signed).sum(3).abs().sum(2)


def _upper_half(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Angles in [0, π) of plane vectors (…, 2) up to their sign, and the vectors so turned."""
    below = (vectors[..., 1] < 0) | ((vectors[..., 1] == 0) & (vectors[..., 0] < 0))
    turned = torch.where(below[..., None], -vectors, vectors)
    return torch.atan2(turned[..., 1], turned[..., 0]), turned


def _formed(a: Tensor, d: Tensor, a_dot: Tensor, d_dot: Tensor) -> Iterator[Tensor]:
    """Form one record's tangents (1, directions, out, in), blocks of directions at a time."""
    size = max(1, _BLOCK // (len(a) * len(d)))
    for x, y in zip(torch.split(a_dot, size), torch.split(d_dot, size), strict=True):
        yield (d[:, None] * x[:, None]).addcmul_(a, y[:, :, None])[None]


def _largest(a: Tensor, d: Tensor, a_dot: Tensor, d_dot: Tensor) -> Tensor:
    """Find one record's largest entry over all directions, (1,)."""
    bounds = d_dot.abs() * a.abs().amax() + d.abs() * a_dot.abs().amax(1, keepdim=True)
    best = bounds.new_zeros(1)
    for pairs in torch.split(bounds.flatten().argsort(descending=True), _PAIRS):
        n, i = pairs // len(d), pairs % len(d)
        if bounds[n[0], i[0]] <= best:
            break
        entries = d_dot[n, i, None] * a + d[i, None] * a_dot[n]
        best = torch.maximum(best, entries.abs().amax())
    return best
