"""The linear system of one convolution, [W; ∇_Z J] x = [z; ∇_W J], and its solvers.

Zhu & Blaschko 2021 (R-GAP), section 3.3; Chen & Campbell 2021 (COPA), eq. 1 and 4. Few inputs are
read by an output and few by an element of a filter, so that about 2 % of U is not zero.

Nonlinear least squares: damped steps, each solved by LSMR no further than it is worth.

J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), section 10.3. How exact a step is
follows from what the last one gained: S. C. Eisenstat and H. F. Walker, "Choosing the forcing terms
in an inexact Newton method" (1996), equation 2.6.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, vstack
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor

from gradaudit.attacks.layerwise.layer_chain import Stage
from gradaudit.errors import NotApplicable
from gradaudit.ranks import linear_system
from gradaudit.ranks.observe import Geometry, geometry_of

Vector: TypeAlias = NDArray[np.float64]
MOST_ENTRIES = 60_000_000
"""Entries of a sparse system, 16 bytes each."""
DENSE_ELEMENTS = 4_000_000
"""Up to this size a system is solved by its singular values."""
_LEAST_DAMPING, _FIRST_DAMPING, _MOST_DAMPING = 1e-8, 1e-3, 1e6
_LOOSEST, _TIGHTEST = 1e-2, 1e-13


@dataclass(frozen=True)
class System:
    """U x = V of one layer, its two blocks of rows apart.

    Attributes:
        weights: W, (outputs, inputs).
        gradients: ∇_Z J laid out so that it maps x to ∇_W J, (elements of the weight, inputs).
        outputs: W's right-hand side z, (outputs,).
        weight_gradient: the other block's, (elements of the weight,).
    """

    weights: csr_array
    gradients: csr_array
    outputs: NDArray[np.float64]
    weight_gradient: NDArray[np.float64]

    def balanced(self) -> tuple[csr_array, NDArray[np.float64]]:
        """U and V, each block divided by the root mean square of its rows' lengths.

        The gradient of a confident or of a deep network is many orders smaller than its weights;
        the solution of a system that has one does not depend on the scales.
        """
        weight, gradient = _scale(self.weights), _scale(self.gradients)
        matrix = vstack([self.weights / weight, self.gradients / gradient], format="csr")
        right = np.concatenate([self.outputs / weight, self.weight_gradient / gradient])
        return csr_array(matrix), right


@dataclass(frozen=True)
class Solution:
    """A solution of least squares, the shortest one where there are several.

    Attributes:
        x: (columns,).
        residual: ‖U x − V‖ / ‖V‖.
        iterations: of LSMR, 0 for a dense solution.
    """

    x: NDArray[np.float64]
    residual: float
    iterations: int


def system_of(stage: Stage, z: Tensor, delta: Tensor, weight_gradient: Tensor) -> System:
    """The system of a convolution.

    Args:
        stage: a convolution.
        z: W x, its output without the bias, (outputs,).
        delta: ∇_Z J, (outputs,).
        weight_gradient: ∇_W J in the weight's shape.

    Raises:
        NotApplicable: it has more than ``MOST_ENTRIES`` entries.
    """
    return System(
        weights_matrix(stage),
        gradients_matrix(stage, delta),
        float64(z),
        float64(weight_gradient.flatten()),
    )


def weights_matrix(stage: Stage) -> csr_array:
    """W of a convolution, (outputs, inputs), both in the order of the flattened tensors."""
    geometry = _geometry_of(stage)
    assert stage.convolution is not None
    filters = stage.weight.detach().double().reshape(len(stage.weight), geometry.channels, -1)
    return linear_system.weights_matrix(filters, geometry, stage.convolution.groups)


def gradients_matrix(stage: Stage, delta: Tensor) -> csr_array:
    """Form ∇_Z J of a convolution, (elements of the weight, inputs), which maps x to ∇_W J.

    Args:
        stage: a convolution.
        delta: ∇_Z J, (outputs,).
    """
    geometry = _geometry_of(stage)
    assert stage.convolution is not None
    deltas = delta.detach().double().reshape(len(stage.weight), geometry.positions)
    return linear_system.gradients_matrix(deltas, geometry, stage.convolution.groups)


def solve(
    matrix: csr_array,
    right: NDArray[np.float64],
    start: NDArray[np.float64] | None = None,
    *,
    iterations: int = 20_000,
    dense: bool | None = None,
    rough: bool = False,
) -> Solution:
    """Least squares: by singular values where the system is small, by LSMR above.

    Fong & Saunders 2011. Both give the solution that is closest to ``start``.

    Args:
        matrix: U, (rows, columns).
        right: V, (rows,).
        start: (columns,), zero by default.
        iterations: the most of LSMR.
        dense: which of the two; None: by size.
        rough: let LSMR stop at ten digits in the residual; for a third of its iterations.
    """
    start = np.zeros(matrix.shape[1]) if start is None else start
    left = right - matrix @ start
    small = matrix.shape[0] * matrix.shape[1] <= DENSE_ELEMENTS
    if small if dense is None else dense:
        step, used = np.linalg.lstsq(matrix.toarray(), left, rcond=1e-12)[0], 0
    else:
        step, used = _lsmr(matrix, left, iterations, rough)
    x, length = start + step, float(np.linalg.norm(right))
    residual = float(np.linalg.norm(matrix @ x - right)) / length if length else 0.0
    return Solution(x, residual, used)


def r_gap(
    weights: NDArray[np.floating] | csr_array,
    gradients: NDArray[np.floating] | csr_array,
    outputs: ArrayLike,
    weight_gradient: ArrayLike,
    *,
    iterations: int = 20_000,
) -> Solution:
    """Solve one layer for its input from its output and gradients.

    The shortest least-squares solution of [W; ∇_Z J] x = [z; ∇_W J], each block scaled to rows of
    length one on the average (Zhu and Blaschko 2021, algorithm 1 and eq. 12; Chen and Campbell
    2021, eq. 4).

    >>> W, x, delta = np.array([[1.0, 2.0, 0.0]]), np.array([0.5, -1.0, 2.0]), np.array([0.1])
    >>> found = r_gap(W, np.kron(delta, np.eye(3)), W @ x, np.outer(delta, x).ravel())
    >>> np.round(found.x, 9).tolist(), bool(found.residual < 1e-12)
    ([0.5, -1.0, 2.0], True)

    Args:
        weights: W, (outputs, inputs).
        gradients: ∇_Z J, (elements of the weight, inputs), which maps x to ∇_W J.
        outputs: z without the bias, (outputs,).
        weight_gradient: ∇_W J, (elements of the weight,).
        iterations: of LSMR, at most.
    """
    blocks = csr_array(weights), csr_array(gradients)
    system = System(*blocks, np.asarray(outputs, float), np.asarray(weight_gradient, float))
    return solve(*system.balanced(), iterations=iterations)


def _lsmr(
    matrix: csr_array, right: NDArray[np.float64], iterations: int, rough: bool
) -> tuple[NDArray[np.float64], int]:
    """LSMR, once more on what is left: its recurrences lose what a fresh residual has."""
    x, used = np.zeros(matrix.shape[1]), 0
    passes, tolerance = (1, 1e-10) if rough else (2, 1e-14)
    for _ in range(passes):
        result = lsmr(
            matrix,
            right - matrix @ x,
            atol=tolerance,
            btol=tolerance,
            conlim=0,
            maxiter=iterations - used,
        )
        x, used = x + result[0], used + int(result[2])
        if used >= iterations:
            break
    return x, used


def _geometry_of(stage: Stage) -> Geometry:
    """The geometry of a convolution whose linear system is small enough to form."""
    assert stage.convolution is not None
    geometry = geometry_of(stage.convolution, stage.input_shape[1:])
    entries = 2 * len(stage.weight) * geometry.channels * geometry.sources.numel()
    if entries > MOST_ENTRIES:
        raise NotApplicable(
            f"{stage.layer}: its linear system has {entries:.2g} entries; "
            f"systems of up to {MOST_ENTRIES:.2g} are solved"
        )
    return geometry


def _scale(matrix: csr_array) -> float:
    return float(np.sqrt(matrix.power(2).sum() / matrix.shape[0])) or 1.0


def float64(tensor: Tensor) -> Vector:
    """Convert a tensor of any shape to a float64 array."""
    return np.asarray(tensor.detach().to("cpu", torch.float64).numpy())


_SOLVED = _STALLED = 1e-12


class Problem(Protocol):
    """A least squares problem: half the squared length of the residuals is minimised."""

    @property
    def scale(self) -> float:
        """The length to which residuals are compared."""

    def residuals(self, z: Vector) -> Vector:
        """Compute the residuals (residuals,) at z."""

    def jacobian(self, z: Vector) -> LinearOperator:
        """The Jacobian of the residuals at z."""


@dataclass(frozen=True)
class LeastSquaresMinimum:
    """The minimum that a search reached.

    Attributes:
        residual: length of the residuals over the problem's scale.
        products: how often a vector was multiplied by the Jacobian, and another by its transpose.
        cut: whether the search ended because it had no more of these.
    """

    z: Vector
    residual: float
    steps: int
    products: int
    cut: bool


@dataclass(frozen=True)
class _Place:
    """The problem at a point; its Jacobian is made once for all steps that are tried from there."""

    problem: Problem
    z: Vector

    @cached_property
    def left(self) -> Vector:
        return self.problem.residuals(self.z)

    @cached_property
    def length(self) -> float:
        return float(np.linalg.norm(self.left))

    @cached_property
    def jacobian(self) -> LinearOperator:
        return self.problem.jacobian(self.z)

    def step(self, damping: float, tolerance: float, most: int) -> tuple[Vector, int]:
        """The least of ‖J s + left‖² + damping² ‖s‖² in ``most`` iterations, and their number."""
        result = lsmr(
            self.jacobian,
            -self.left,
            damp=damping,
            atol=tolerance * _LOOSEST,
            btol=tolerance,
            conlim=0,
            maxiter=most,
        )
        return np.asarray(result[0]), int(result[2])


def minimise(
    problem: Problem, start: Vector, *, steps: int, inner: int, products: int | None = None
) -> LeastSquaresMinimum:
    """Minimise the problem from a start.

    Args:
        problem: residuals and their Jacobian.
        start: (unknowns,).
        steps: the most that are tried.
        inner: the most iterations of LSMR in a step.
        products: the most iterations of LSMR in all.
    """
    here, damping, tolerance = _Place(problem, start), _FIRST_DAMPING, _LOOSEST
    most, spent, taken = steps * inner if products is None else products, 0, 0
    while here.length > _SOLVED * problem.scale and damping <= _MOST_DAMPING:
        if taken >= steps or spent >= most:
            break
        step, count = here.step(damping, tolerance, min(inner, most - spent))
        there, taken, spent = _Place(problem, here.z + step), taken + 1, spent + count
        if not there.length < here.length:
            damping *= 10
            continue
        ratio, here = there.length / here.length, there
        damping = max(damping / 10, _LEAST_DAMPING)
        tolerance = float(np.clip(ratio**2, _TIGHTEST, _LOOSEST))
        if 1 - ratio <= _STALLED:
            break
    residual = here.length / problem.scale
    return LeastSquaresMinimum(here.z, residual, taken, spent, spent >= most and residual > _SOLVED)
