"""Rank of U = [W; ∇_Z J] of a convolution: of each group by the method that suits it, summed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from torch import Generator, Tensor

from gradaudit.core.randomness import Seed, torch_rng
from gradaudit.errors import NotApplicable
from gradaudit.ranks.matrix_free import Nullity, nullity
from gradaudit.ranks.observe import Geometry
from gradaudit.ranks.operator import MOST_ELEMENTS, NULL, ReducedU, SpectralGap, row_basis
from gradaudit.ranks.sides import RowSpace, confirmed, smaller_side

Method = Literal["auto", "dense", "structured", "generic"]
Evidence = Literal["exact", "dense", "craig", "generic", "bracket"]
_CHEAP_FLOPS = 5e8


@dataclass(frozen=True)
class GroupRank:
    """Rank of U of one group, or the bracket it lies in.

    Attributes:
        low: the rank is not smaller (for ``craig`` and brackets, but for a probability; for
            ``generic``, for almost all such weights).
        high: the rank is not larger.
        method: ``exact``, a theorem; ``dense``, singular values of Û; ``craig``, probes;
            ``generic``, almost all weights with the same zeros and ties reach ``high``;
            ``bracket``, no more than that is known.
        bound: the upper bound by theorem.
        touched: inputs that are read at all.
        filters: what decided the rank of the filters.
        deltas: what decided the rank of the output gradients.
        spectrum: what decided the rank of Û, where it was ``dense``, or of the equations of output
            gradients alone, where they leave nothing open (``exact``).
        search: what the probes showed, where some were followed.
    """

    low: int
    high: int
    method: Evidence
    bound: int
    touched: int
    filters: SpectralGap
    deltas: SpectralGap
    spectrum: SpectralGap | None = None
    search: Nullity | None = None


@dataclass(frozen=True)
class LayerRank:
    """Rank of U of a convolution: U is block diagonal over its groups."""

    groups: tuple[GroupRank, ...]

    @property
    def low(self) -> int:
        """The least that the rank can be."""
        return sum(group.low for group in self.groups)

    @property
    def high(self) -> int:
        """The most that the rank can be."""
        return sum(group.high for group in self.groups)


def convolution_rank(
    weight: Tensor,
    deltas: Tensor,
    geometry: Geometry,
    groups: int = 1,
    *,
    method: Method = "auto",
    flops: float = 1e12,
    seed: Seed = 0,
) -> LayerRank:
    """Rank of U = [W; ∇_Z J] (Chen & Campbell 2021, eq. 4).

    The weight is (output channels, input channels of a group, *kernel) float64, the geometry that
    of each group, and ``deltas`` are ∂J/∂Z at the convolution's output, (output channels, output
    positions) float64. The method ``auto`` takes what suits the layer. ``flops`` are the floating-
    point operations that may be spent, over all groups, before a bracket is given; the same on
    every machine, unlike a time limit.

    Raises:
        NotApplicable: Û is too large for ``dense``.
    """
    filters = weight.flatten(2).mT.reshape(groups, -1, geometry.taps * geometry.channels)
    gradients = deltas.reshape(groups, -1, geometry.positions)
    ranks = []
    for group, (rows, deltas) in enumerate(zip(filters, gradients, strict=True)):
        generator = torch_rng(seed, "ranks", "group", group)
        ranks.append(_group_rank(rows, deltas, geometry, method, flops / groups, generator))
    return LayerRank(tuple(ranks))


def _group_rank(
    filters: Tensor,
    deltas: Tensor,
    geometry: Geometry,
    method: Method,
    flops: float,
    generator: Generator,
) -> GroupRank:
    """Rank of a group's filters (output channels, taps · channels), input channels fastest."""
    live = geometry.live.repeat_interleave(geometry.channels)
    rows = RowSpace(ReducedU(geometry, row_basis(filters * live), row_basis(deltas)))
    if method == "dense":
        return _dense(rows)
    known = _closed_form(rows.operator)
    if known is not None:
        return _with_facts(rows, known, known, "exact", known)
    if method == "generic" and confirmed(filters, rows):
        return _with_facts(rows, rows.bound, rows.bound, "generic", rows.bound)
    if method != "structured" and rows.operator.dense_flops <= _CHEAP_FLOPS:
        return _dense(rows)
    dense = rows.operator.dense_flops <= flops
    generic = cache(lambda: confirmed(filters, rows))
    probed = _by_probes(
        rows, flops, generator, lambda: method == "auto" and not dense and generic()
    )
    smallest = probed.search.smallest if probed.search else None
    settled = probed.low == probed.high and (smallest is None or smallest > NULL)
    if method == "structured" or settled:  # without singular values that another method drops
        return probed
    if dense:
        return _dense(rows)
    if probed.low < probed.high == rows.bound and generic():  # no null direction was seen
        return replace(probed, low=rows.bound, high=rows.bound, method="generic")
    return probed


def _with_facts(rows: RowSpace, low: int, high: int, method: Evidence, bound: int) -> GroupRank:
    filters, deltas = rows.operator.filters.gap, rows.operator.deltas.gap
    return GroupRank(low, high, method, bound, rows.operator.geometry.touched, filters, deltas)


def _closed_form(operator: ReducedU) -> int | None:
    """The rank where a theorem gives it.

    Filters that span all live taps, or output gradients that span all positions, leave no touched
    input open. Where no input is read twice and nothing is padded, all rows are independent.
    """
    geometry = operator.geometry
    filters, deltas, live = operator.filters.rank, operator.deltas.rank, int(operator.live.sum())
    if filters == live or deltas == geometry.positions:
        return geometry.touched
    if filters == deltas == 0:
        return 0
    if int(geometry.reads.max()) == 1 and bool((geometry.sources < geometry.size).all()):
        return filters * geometry.positions + deltas * (live - filters)
    return None


def _dense(rows: RowSpace) -> GroupRank:
    size = rows.operator.elements
    if size > MOST_ELEMENTS:
        raise NotApplicable(
            f"U would take {8e-9 * size:.3g} GB as a dense matrix; use --method auto"
        )
    gap = rows.operator.singular_values()
    return replace(_with_facts(rows, gap.rank, gap.rank, "dense", rows.bound), spectrum=gap)


def _by_probes(
    rows: RowSpace, flops: float, generator: Generator, dispensable: Callable[[], bool]
) -> GroupRank:
    side = smaller_side(rows, flops)
    if not side.dimension and side.equations:
        known = _with_facts(rows, side.known, side.known, "exact", rows.bound)
        return replace(known, spectrum=side.equations.gap)
    dimension = side.known + side.dimension
    least, flops = dimension - rows.bound, flops - side.spent
    left = nullity(side, least=least, flops=flops, generator=generator, dispensable=dispensable)
    low, high = dimension - left.high, dimension - left.low
    method: Evidence = "craig" if low == high else "bracket"
    return replace(_with_facts(rows, low, high, method, rows.bound), search=left)
