"""The rank without forming Û: a nullity certified by probes, or a bracket where work runs out.

How much of a Gaussian probe the rows of Û account for is found by Craig's method (CGNE): E. J.
Craig, "The N-step iteration procedures" (1955), in the form of conjugate gradients on the normal
equations of min ‖x − B y‖, in the norm ⟨e, M e⟩ of the side's preconditioner M; the iterates leave
the shortest residual over the Krylov space.

If B leaves a space N of dimension ν, a residual e = x − B y of a standard Gaussian probe x is, for
whatever y, at least as long as the part of x in N, which is a standard Gaussian of dimension ν.
Small residuals therefore exclude a large ν, by two laws that hold at once:

- ‖E‖²_F over p probes is at least χ² with ν·p degrees of freedom;
- the ν-th singular value of E is at least the least one of a ν × p standard Gaussian matrix, which
  is below s with probability at most (s e √p / (p−ν+1))^(p−ν+1) (Halko, Martinsson & Tropp 2011,
  proposition 10.4; Chen & Dongarra 2005).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from scipy.special import gammainc, gammaincinv
from torch import Generator, Tensor

from gradaudit.ranks.operator import EPSILON, NULL
from gradaudit.ranks.sides import Side

ALPHA = 1e-9
"""Probability that a certified rank is too high (or a bracket's lower end)."""
ALPHA_SMALLEST = 1e-3
"""Probability that the least singular value is below what is stated of it."""
_ROUNDING = 8 * EPSILON
_FIRST_PROBES = 2
_SPARE_PROBES = 8
_MOST_PROBE_BYTES = 1 << 26
_REFINEMENTS = 6
_SIGMAS = 6.5
_GLANCE = 8
_SLACK = 2.0


@dataclass(frozen=True)
class Nullity:
    """The part of a side's space that Û does not span.

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


@dataclass(frozen=True)
class Residuals:
    """Residuals of the probes.

    ``vectors`` are E = X − B Y, computed afresh, and ``coefficients`` Y, (probes, …) both; ``null``
    are directions in E that B does not span, (k, …) orthonormal, ``others`` is the Frobenius norm
    of E beside them, and ``iterations`` counts applications of B and Bᵀ to every probe.
    """

    vectors: Tensor
    coefficients: Tensor
    null: Tensor
    others: float
    iterations: int


@dataclass
class ResidualProgress:
    """The progress of some probes' residuals, which decides whether to go on.

    Residuals of a Frobenius norm of ``enough`` are short enough, and B and Bᵀ are applied to every
    probe ``iterations`` times at most. Where at their pace it took more than ``_SLACK`` times as
    many, ``dispensable`` is asked once whether to give up.
    """

    enough: float
    iterations: int
    dispensable: Callable[[], bool] = lambda: False
    norms: list[float] = field(default_factory=list)
    given_up: bool = False

    @property
    def taken(self) -> int:
        """Return the number of iterations that were taken."""
        return len(self.norms)

    @property
    def over(self) -> bool:
        """Whether no iteration is left."""
        return self.given_up or self.taken >= self.iterations

    def follow(self, norm: float) -> bool:
        """Whether residuals of this norm after one more iteration are short enough."""
        self.norms.append(norm)
        if self.taken == _GLANCE:
            self.given_up = self._needed > _SLACK * self.iterations and self.dispensable()
        return norm <= self.enough

    @property
    def _needed(self) -> float:
        """Iterations in all, at the pace since half of those until now."""
        middle, last = self.norms[self.taken // 2 - 1], self.norms[-1]
        if last >= middle or not last:
            return math.inf if last else 0.0
        pace = math.log(middle / last) / (self.taken - self.taken // 2)
        return self.taken + max(0.0, math.log(last / self.enough)) / pace


def nullity(
    side: Side,
    *,
    least: int,
    flops: float,
    generator: Generator,
    dispensable: Callable[[], bool] = lambda: False,
) -> Nullity:
    """Nullity of a side, from as few probes as settle it.

    ``least`` is the nullity that is known to be there, from the bound; the search may take
    ``flops`` floating-point operations. Where it is not on course to end within them,
    ``dispensable`` is asked whether it may be given up.
    """
    enough = least + _SPARE_PROBES
    count = enough if least and _fits(side, enough, flops) else _FIRST_PROBES
    low, high, looks = least, side.dimension, 0
    while True:
        looks += 1
        null, most = NULL * side.operator.geometry.scale, 10 * side.dimension
        iterations = int(min(flops / _cost(side, count), most))
        probes = side.probes(count, generator)
        course = ResidualProgress(_enough(count), iterations, dispensable)
        left = leave_residuals(side, probes, null=null, course=course)
        flops -= _cost(side, count) * left.iterations
        judged = _judge(side, left)
        low = max(low, judged.low)
        high = max(low, min(high, judged.high))
        before, count = count, _probes_for(left)
        settled = low == high or count <= before or left.others > _enough(before)
        if settled or not _fits(side, count, flops):
            return replace(judged, low=low, high=high, looks=looks)


def _enough(count: int) -> float:
    """Residuals this short leave no nullity possible, with room for their rounding errors."""
    return 0.5 * least_norm(count, ALPHA)


def _judge(side: Side, left: Residuals) -> Nullity:
    """The nullities that the residuals, rounding errors included, leave possible."""
    gain = float(torch.linalg.matrix_norm(left.coefficients, 2)) * side.operator.geometry.scale
    probes = len(left.vectors)
    longest = math.sqrt(side.dimension) + math.sqrt(probes) + _SIGMAS  # of Gaussian probes
    rounding = _ROUNDING * gain + side.rounding * (longest + gain)  # of X and of Wᵀ Y
    values = torch.linalg.svdvals(left.vectors) + rounding
    others = [0.0] * (probes - len(values))  # of more probes than there are dimensions
    high = largest_nullity([*values.tolist(), *others], ALPHA, side.dimension)
    smallest = None
    if not high:  # vᵀX = vᵀE + (Bᵀv)ᵀY bounds σ = ‖Bᵀv‖, with ‖vᵀX‖ at its lower quantile
        of_side = max(0.0, least_norm(probes, ALPHA_SMALLEST) - float(values[0])) / gain
        smallest = side.of_whole(of_side)
    low = len(left.null)
    return Nullity(side.name, low, high, 1, probes, left.iterations, left.others, smallest)


def _probes_for(left: Residuals) -> int:
    """Probes enough to see all of the nullity that the residuals suggest: ‖e‖² is χ² with ν."""
    suggested = float(left.vectors.square().sum()) / len(left.vectors)
    return math.ceil(suggested + 4 * math.sqrt(suggested)) + _SPARE_PROBES


def _cost(side: Side, count: int) -> float:
    return count * side.flops


def _fits(side: Side, count: int, flops: float) -> bool:
    longest = max(side.operator.columns, side.operator.height)
    return 8 * count * longest <= _MOST_PROBE_BYTES and _cost(side, count) <= flops


def leave_residuals(
    side: Side, probes: Tensor, *, null: float, course: ResidualProgress
) -> Residuals:
    """Subtract from the probes what B spans, until what is left is null or short enough.

    ``probes`` are X, (probes, …); a direction v with ‖Bᵀ v‖ ≤ ``null`` is one that B does not span.
    """
    right, coefficients = probes, probes.new_zeros(())
    for _ in range(_REFINEMENTS):
        step = _conjugate_gradients(side, right, null / 10, course)
        coefficients = coefficients + step
        residuals = probes - side.span(coefficients)
        left_over = _null_directions(side, residuals, course.enough, null)
        right = residuals - residuals @ left_over.T @ left_over
        if right.norm() <= course.enough or course.over:
            break
    return Residuals(residuals, coefficients, left_over, float(right.norm()), course.taken)


def _null_directions(side: Side, residuals: Tensor, enough: float, null: float) -> Tensor:
    """Orthonormal rows that B leaves over all together, of those that the residuals point at."""
    if residuals.norm() <= enough:
        return residuals[:0]
    directions = torch.linalg.svd(side.precondition(residuals), full_matrices=False).Vh
    images = side.against(directions).square().sum(dim=1).cumsum(dim=0).sqrt()
    left_over: Tensor = directions[: int((images <= null).sum())]
    return left_over


def _conjugate_gradients(
    side: Side, right: Tensor, null: float, course: ResidualProgress
) -> Tensor:
    """Conjugate gradients on BᵀM B y = BᵀM x for every row x on its own."""
    residuals, weighted = right.clone(), side.precondition(right).clone()
    gradients = side.against(weighted)
    solution, directions = torch.zeros_like(gradients), gradients.clone()
    squares = gradients.square().sum(dim=1)
    while not course.over:
        images = side.span(directions)
        weighted_images = side.precondition(images)
        steps = _quotient(squares, (images * weighted_images).sum(dim=1))[:, None]
        solution.addcmul_(steps, directions)
        residuals.addcmul_(steps, images, value=-1)
        weighted.addcmul_(steps, weighted_images, value=-1)
        gradients = side.against(weighted)
        previous, squares = squares, gradients.square().sum(dim=1)
        directions.mul_(_quotient(squares, previous)[:, None]).add_(gradients)
        short = course.follow(float(residuals.norm()))
        stagnated = squares.sum().sqrt() <= null * weighted.norm()
        if stagnated or short:
            break
    return solution


def _quotient(above: Tensor, below: Tensor) -> Tensor:
    """The quotient, zero where a probe has nothing left to divide by."""
    return torch.where(below > 0, above / below, 0.0)


def largest_nullity(residuals: Sequence[float], alpha: float, dimension: int) -> int:
    """The largest nullity that the residuals leave possible.

    Their singular values, one for every probe, come in descending order; α is the probability that
    a larger nullity would have left such ones.
    """
    by_norm = _first_excluded_by_norm(residuals, alpha / 2, dimension)
    by_value = _first_excluded_by_values(residuals, alpha / 2, dimension)
    return min(by_norm, by_value) - 1


def least_norm(probes: int, alpha: float) -> float:
    """Frobenius norm of residuals below which no nullity is left possible."""
    return float(math.sqrt(2 * gammaincinv(probes / 2, alpha / 2)))


def _first_excluded_by_norm(residuals: Sequence[float], alpha: float, dimension: int) -> int:
    energy = sum(value**2 for value in residuals)
    low, high = 0, dimension + 1
    while high - low > 1:
        middle = (low + high) // 2
        excluded = gammainc(middle * len(residuals) / 2, energy / 2) <= alpha
        low, high = (low, middle) if excluded else (middle, high)
    return high


def _first_excluded_by_values(residuals: Sequence[float], alpha: float, dimension: int) -> int:
    probes = len(residuals)
    for nullity, value in enumerate(residuals, 1):
        spare = probes - nullity + 1
        if (value * math.e * math.sqrt(probes) / spare) ** spare <= alpha:
            return nullity
    return dimension + 1
