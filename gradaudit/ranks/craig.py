"""Craig's method (CGNE) on probes: how much of a Gaussian probe the rows of Û account for.

E. J. Craig, "The N-step iteration procedures" (1955), in the form of conjugate gradients on the
normal equations of min ‖x − B y‖, in the norm ⟨e, M e⟩ of the side's preconditioner M; the iterates
leave the shortest residual over the Krylov space.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.ranks.sides import Side

_REFINEMENTS = 6


@dataclass(frozen=True)
class Residuals:
    """What is left of the probes.

    Attributes:
        vectors: E = X − B Y, computed afresh, (probes, …).
        coefficients: Y, (probes, …).
        null: (k, …) orthonormal, directions in E that B does not span.
        others: Frobenius norm of E beside ``null``.
        iterations: applications of B and Bᵀ to every probe.
    """

    vectors: Tensor
    coefficients: Tensor
    null: Tensor
    others: float
    iterations: int


def leave_residuals(
    side: Side, probes: Tensor, *, enough: float, null: float, iterations: int
) -> Residuals:
    """Subtract from the probes what B spans, until what is left is null or short enough.

    Args:
        side: gives B and Bᵀ.
        probes: X, (probes, …).
        enough: Frobenius norm of the residuals, beside null directions, to stop at.
        null: a direction v with ‖Bᵀ v‖ ≤ null is one that B does not span.
        iterations: the most applications of B and Bᵀ to every probe.
    """
    right, coefficients, done = probes, probes.new_zeros(()), 0
    for _ in range(_REFINEMENTS):
        step, taken = _conjugate_gradients(side, right, enough, null / 10, iterations - done)
        coefficients, done = coefficients + step, done + taken
        residuals = probes - side.span(coefficients)
        left_over = _null_directions(side, residuals, enough, null)
        right = residuals - residuals @ left_over.T @ left_over
        if right.norm() <= enough or done >= iterations:
            break
    return Residuals(residuals, coefficients, left_over, float(right.norm()), done)


def _null_directions(side: Side, residuals: Tensor, enough: float, null: float) -> Tensor:
    """Orthonormal rows that B leaves over all together, of those that the residuals point at."""
    if residuals.norm() <= enough:
        return residuals[:0]
    _, _, directions = torch.linalg.svd(side.precondition(residuals), full_matrices=False)
    images = side.against(directions).square().sum(dim=1).cumsum(dim=0).sqrt()
    left_over: Tensor = directions[: int((images <= null).sum())]
    return left_over


def _conjugate_gradients(
    side: Side, right: Tensor, enough: float, null: float, iterations: int
) -> tuple[Tensor, int]:
    """Conjugate gradients on BᵀM B y = BᵀM x for every row x on its own."""
    residuals, weighted = right.clone(), side.precondition(right).clone()
    gradients = side.against(weighted)
    solution, directions = torch.zeros_like(gradients), gradients.clone()
    squares = gradients.square().sum(dim=1)
    taken = 0
    while taken < iterations:
        images = side.span(directions)
        weighted_images = side.precondition(images)
        steps = _quotient(squares, (images * weighted_images).sum(dim=1))[:, None]
        solution.addcmul_(steps, directions)
        residuals.addcmul_(steps, images, value=-1)
        weighted.addcmul_(steps, weighted_images, value=-1)
        gradients = side.against(weighted)
        previous, squares = squares, gradients.square().sum(dim=1)
        directions.mul_(_quotient(squares, previous)[:, None]).add_(gradients)
        taken += 1
        stagnated = squares.sum().sqrt() <= null * weighted.norm()
        if stagnated or residuals.norm() <= enough:
            break
    return solution, taken


def _quotient(above: Tensor, below: Tensor) -> Tensor:
    """The quotient, zero where a probe has nothing left to divide by."""
    return torch.where(below > 0, above / below, 0.0)
