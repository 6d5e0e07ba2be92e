"""Rank of U = [W; ∇_Z J] of a convolution: of each group by the method that suits it, summed."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gradaudit.errors import NotApplicable
from gradaudit.ranks.bound import rank_bound
from gradaudit.ranks.linear_system import (
    MOST_ELEMENTS,
    ConvolutionSystem,
    SpectralGap,
    is_definite,
    row_basis,
)
from gradaudit.ranks.observe import Geometry

Method = Literal["auto", "dense", "structured", "generic"]
Evidence = Literal["exact", "dense", "structured", "bound"]


@dataclass(frozen=True)
class GroupRank:
    """Rank of U of one group, or the interval it lies in.

    Attributes:
        low: the rank is not smaller.
        high: the rank is not larger.
        method: ``exact``, a theorem; ``structured``, UᵀU or the part of it that repeats has so many
            eigenvalues above rounding; ``dense``, singular values of U; ``bound``, no more is
            known.
        bound: the upper bound by theorem.
        touched: inputs that are read at all.
        filters: what decided the rank of the filters.
        deltas: what decided the rank of the output gradients.
        spectrum: what decided the rank of U, where it was ``dense``.
    """

    low: int
    high: int
    method: Evidence
    bound: int
    touched: int
    filters: SpectralGap
    deltas: SpectralGap
    spectrum: SpectralGap | None = None


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
) -> LayerRank:
    """Compute rank U, U = [W; ∇_Z J] (Chen & Campbell 2021, eq. 4).

    Args:
        weight: (output channels, input channels of a group, *kernel) float64.
        deltas: ∂J/∂Z at the convolution's output, (output channels, output positions) float64.
        geometry: that of each group.
        groups: of the convolution.
        method: ``auto`` takes what suits the layer, ``generic`` the upper bound alone.
        flops: floating-point operations over all groups beyond which the bound is taken.

    Raises:
        NotApplicable: U is too large for ``dense``.
    """
    filters = weight.flatten(2).mT.reshape(groups, -1, geometry.taps * geometry.channels)
    gradients = deltas.reshape(groups, -1, geometry.positions)
    return LayerRank(
        tuple(
            _group_rank(rows, deltas, geometry, method, flops / groups)
            for rows, deltas in zip(filters, gradients, strict=True)
        )
    )


def _group_rank(
    filters: Tensor, deltas: Tensor, geometry: Geometry, method: Method, flops: float
) -> GroupRank:
    """Compute the rank of a group's filters (output channels, taps · channels)."""
    live = geometry.live.repeat_interleave(geometry.channels)
    system = ConvolutionSystem(geometry, row_basis(filters * live), row_basis(deltas))
    bound, touched = rank_bound(system), geometry.touched
    gaps = system.filters.gap, system.deltas.gap

    def known(rank: int, evidence: Evidence, low: int | None = None) -> GroupRank:
        return GroupRank(rank if low is None else low, rank, evidence, bound, touched, *gaps)

    def dense() -> GroupRank:
        gap = system.singular_values()
        return GroupRank(gap.rank, gap.rank, "dense", bound, touched, *gaps, spectrum=gap)

    if method == "generic":
        return known(bound, "bound", 0)
    elements = system.columns * system.height
    if method == "dense":
        if elements > MOST_ELEMENTS:
            raise NotApplicable(
                f"U would take {8e-9 * elements:.3g} GB as a dense matrix; use --method auto"
            )
        return dense()
    by_theorem = _closed_form(system)
    if by_theorem is not None:
        return known(by_theorem, "exact")
    if _channels_determined(system):
        return known(touched, "structured")
    gram_flops = system.gram_flops(bound)
    fits = elements <= MOST_ELEMENTS and system.dense_flops <= flops and method != "structured"
    if fits and system.dense_flops <= gram_flops:
        return dense()
    formed = system.side**2 <= MOST_ELEMENTS and gram_flops <= flops
    least = system.least_rank(bound, flops) if formed else 0
    if least == bound:
        return known(bound, "structured")
    if fits:
        return dense()
    return known(bound, "bound", least)


def _closed_form(system: ConvolutionSystem) -> int | None:
    """Compute the rank where a theorem gives it.

    Filters that span all live taps, or output gradients that span all positions, leave no touched
    input open. Where no input is read twice and nothing is padded, all rows are independent.
    """
    geometry = system.geometry
    filters, deltas, live = system.filters.rank, system.deltas.rank, int(system.live.sum())
    if filters == live or deltas == geometry.positions:
        return geometry.touched
    if filters == deltas == 0:
        return 0
    if int(geometry.reads.max()) == 1 and bool((geometry.sources < geometry.size).all()):
        return filters * geometry.positions + deltas * (live - filters)
    return None


def _channels_determined(system: ConvolutionSystem) -> bool:
    """Whether output gradients alone determine every channel, all of which they see alike."""
    read = system.geometry.touched // system.geometry.channels
    equations = system.geometry.taps * system.deltas.rank
    return read <= min(equations, MOST_ELEMENTS**0.5) and is_definite(system.channel_gram())
