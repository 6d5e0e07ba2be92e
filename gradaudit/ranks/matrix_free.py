"""The rank without forming Û: a nullity certified by probes, or a bracket where work runs out."""

import math
from dataclasses import dataclass, replace

import torch

from gradaudit.ranks.bases import EPSILON
from gradaudit.ranks.certificate import largest_nullity, least_norm
from gradaudit.ranks.craig import Residuals, leave_residuals
from gradaudit.ranks.operator import NULL
from gradaudit.ranks.sides import Side

ALPHA = 1e-9
"""Probability that a certified rank is too high (or a bracket's lower end)."""

ALPHA_SMALLEST = 1e-3
"""Probability that the least singular value is below what is stated of it."""

_ROUNDING = 8 * EPSILON
_FIRST_PROBES = 2
_SPARE_PROBES = 8
_MOST_PROBE_BYTES = 1 << 26


@dataclass(frozen=True)
class Nullity:
    """How much of a side's space Û does not span.

    Attributes:
        side: ``inputs``, spanned by the rows of Û, or ``rows``, spanned by its columns.
        low: a subspace of this dimension is seen to be left over, or follows from the bound.
        high: more than this is excluded, but for the probability ``ALPHA``.
        looks: how many sets of probes were followed, each with that probability.
        probes: how many Gaussian vectors were followed last.
        iterations: applications of Û and Ûᵀ to each of them.
        residual: length of what is left of the probes in directions that are not left over.
        smallest: lower bound of the least singular value of Û, over ‖im2col‖₂, but for the
            probability ``ALPHA_SMALLEST``; None where something may be left over.
    """

    side: str
    low: int
    high: int
    looks: int
    probes: int
    iterations: int
    residual: float
    smallest: float | None


def nullity(side: Side, *, least: int, flops: float, generator: torch.Generator) -> Nullity:
    """Nullity of a side, from as few probes as settle it.

    Args:
        side: the space.
        least: nullity that is known to be there, from the bound.
        flops: floating-point operations that the search may take.
        generator: what the probes are drawn from.
    """
    count = _FIRST_PROBES
    if least and _fits(side, least + _SPARE_PROBES, flops):
        count = least + _SPARE_PROBES
    low, high, looks = least, side.dimension, 0
    while True:
        looks += 1
        left = _follow(side, count, flops, generator)
        flops -= _cost(side, count) * left.iterations
        judged = _judge(side, left)
        low = max(low, judged.low)
        high = max(low, min(high, judged.high))
        before, count = count, _probes_for(left)
        settled = low == high or count <= before or left.others > _enough(before)
        if settled or not _fits(side, count, flops):
            return replace(judged, low=low, high=high, looks=looks)


def _follow(side: Side, count: int, flops: float, generator: torch.Generator) -> Residuals:
    return leave_residuals(
        side,
        side.probes(count, generator),
        enough=_enough(count),
        null=NULL * side.operator.geometry.scale,
        iterations=int(min(flops / _cost(side, count), 10 * side.dimension)),
    )


def _enough(count: int) -> float:
    """Residuals this short leave no nullity possible, with room for their rounding errors."""
    return 0.5 * least_norm(count, ALPHA)


def _judge(side: Side, left: Residuals) -> Nullity:
    """The nullities that the residuals, rounding errors included, leave possible."""
    gain = float(torch.linalg.matrix_norm(left.coefficients, 2)) * side.operator.geometry.scale
    values = torch.linalg.svdvals(left.vectors) + _ROUNDING * gain
    high = largest_nullity(values.tolist(), ALPHA, side.dimension)
    return Nullity(
        side=side.name,
        low=len(left.null),
        high=high,
        looks=1,
        probes=len(values),
        iterations=left.iterations,
        residual=left.others,
        smallest=None if high else _smallest(len(values), float(values[0]), gain),
    )


def _smallest(probes: int, residual: float, gain: float) -> float:
    """From vᵀX = vᵀE + (Bᵀv)ᵀY: the least σ = ‖Bᵀv‖ with ‖vᵀX‖ at its lower quantile."""
    return max(0.0, least_norm(probes, ALPHA_SMALLEST) - residual) / gain


def _probes_for(left: Residuals) -> int:
    """Probes enough to see all of the nullity that the residuals suggest: ‖e‖² is χ² with ν."""
    suggested = float(left.vectors.square().sum()) / len(left.vectors)
    return math.ceil(suggested + 4 * math.sqrt(suggested)) + _SPARE_PROBES


def _cost(side: Side, count: int) -> float:
    """Floating-point operations of one iteration."""
    return 2.0 * count * side.operator.flops


def _fits(side: Side, count: int, flops: float) -> bool:
    longest = max(side.operator.columns, side.operator.height)
    return 8 * count * longest <= _MOST_PROBE_BYTES and _cost(side, count) <= flops
