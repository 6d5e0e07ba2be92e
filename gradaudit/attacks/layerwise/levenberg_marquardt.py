"""Nonlinear least squares: damped steps, each solved by LSMR no further than it is worth.

J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), section 10.3. How exact a step is
follows from what the last one gained: S. C. Eisenstat and H. F. Walker, "Choosing the forcing terms
in an inexact Newton method" (1996), equation 2.6.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsmr

from gradaudit.attacks.layerwise.systems import Vector

_SOLVED = _STALLED = 1e-12
_LEAST_DAMPING, _FIRST_DAMPING, _MOST_DAMPING = 1e-8, 1e-3, 1e6
_LOOSEST, _TIGHTEST = 1e-2, 1e-13


class Problem(Protocol):
    """A least squares problem: half the squared length of the residuals is minimised."""

    @property
    def scale(self) -> float:
        """A length that residuals are compared to."""

    def residuals(self, z: Vector) -> Vector:
        """(residuals,) at z."""

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
    """The end of the search from a start.

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
