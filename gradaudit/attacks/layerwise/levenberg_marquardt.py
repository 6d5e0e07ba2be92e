"""Nonlinear least squares by the method of Levenberg and Marquardt, without forming a Jacobian."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, lsmr

Vector: TypeAlias = NDArray[np.float64]

_SOLVED = 1e-12
_STALLED = 1e-12
_MOST_DAMPING = 1e6


class Problem(Protocol):
    """What is minimised: half the squared length of the residuals."""

    @property
    def scale(self) -> float:
        """A length that residuals are compared to."""

    def residuals(self, z: Vector) -> Vector:
        """(residuals,) at z."""

    def jacobian(self, z: Vector) -> LinearOperator:
        """Of the residuals at z."""


@dataclass(frozen=True)
class Minimum:
    """Where a search ended.

    Attributes:
        z: the point.
        residual: length of the residuals over the problem's scale.
        steps: accepted and refused ones.
    """

    z: Vector
    residual: float
    steps: int


def minimise(problem: Problem, start: Vector, *, steps: int, inner: int) -> Minimum:
    """The end of the search from a start.

    Args:
        problem: what is minimised.
        start: where from.
        steps: the most of the outer iteration.
        inner: the most iterations of LSMR in one of them.
    """
    z, left = start, problem.residuals(start)
    length, damping, taken = float(np.linalg.norm(left)), 1e-3, 0
    while taken < steps and length > _SOLVED * problem.scale and damping <= _MOST_DAMPING:
        tried = z + _step(problem, z, left, damping, inner)
        tried_left = problem.residuals(tried)
        tried_length = float(np.linalg.norm(tried_left))
        taken += 1
        gained = length - tried_length
        if gained > 0:
            z, left, length, damping = tried, tried_left, tried_length, damping / 10
        else:
            damping *= 10
        if 0 < gained <= _STALLED * length:
            break
    return Minimum(z, length / problem.scale, taken)


def _step(problem: Problem, z: Vector, left: Vector, damping: float, inner: int) -> Vector:
    result = lsmr(
        problem.jacobian(z), -left, damp=damping, atol=1e-13, btol=1e-13, conlim=0, maxiter=inner
    )
    step: Vector = result[0]
    return step
