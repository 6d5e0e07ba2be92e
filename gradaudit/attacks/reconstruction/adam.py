"""Adam (Kingma & Ba 2015) and signed Adam for many independent problems at once.

Signed Adam takes the sign of the gradient before Adam's averages, and the rate falls to a tenth at
3/8, 5/8 and 7/8 of the iterations: J. Geiping et al., "Inverting gradients – how easy is it to
break privacy in federated learning?" (2020), section 4 and the released code.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.objectives import Evaluation, Minimum

_FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8
_MILESTONES = (3 / 8, 5 / 8, 7 / 8)


@dataclass(frozen=True)
class Pace:
    """How far a step goes.

    Attributes:
        rate: learning rate of the first steps.
        decay: let it fall to a tenth at three milestones.
        signed: take the gradient's sign first.
    """

    rate: float
    decay: bool = True
    signed: bool = False

    def at(self, iteration: int, iterations: int) -> float:
        """The learning rate of one step, counted from 0."""
        passed = sum(iteration >= share * iterations for share in _MILESTONES)
        return self.rate * 0.1 ** (passed if self.decay else 0)


def descend(
    evaluate: Evaluation,
    start: Tensor,
    iterations: int,
    pace: Pace,
    *,
    project: Callable[[Tensor], Tensor] = lambda points: points,
    advance: Callable[[int], None] = lambda units: None,
) -> Minimum:
    """Minimise one function from several starts; each ends at the best point that it has seen.

    Args:
        evaluate: the function and its gradient, of rows.
        start: (rows, n).
        iterations: steps.
        pace: rate, decay, sign.
        project: brings points (rows, n) back into what is allowed.
        advance: told of every step of every row.
    """
    points = project(start)
    first, second = torch.zeros_like(points), torch.zeros_like(points)
    best, values = points.clone(), points.new_full((len(points),), torch.nan)
    broken = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    for iteration in range(iterations + 1):
        current, gradients = evaluate(points)
        broken |= ~current.isfinite() | ~gradients.isfinite().all(dim=1)
        better = ~broken & ~(current >= values)
        best[better], values[better] = points[better], current[better]
        if iteration == iterations or bool(broken.all()):
            break
        gradients = gradients.sign() if pace.signed else gradients
        gradients = torch.where(broken[:, None], 0, gradients)
        first.lerp_(gradients, 1 - _FIRST)
        second.lerp_(gradients.square(), 1 - _SECOND)
        size = pace.at(iteration, iterations) / (1 - _FIRST ** (iteration + 1))
        spread = (second / (1 - _SECOND ** (iteration + 1))).sqrt() + _SMALL
        points = project(points - size * first / spread)
        advance(len(points))
    count = torch.full((len(points),), iteration, dtype=torch.int64, device=points.device)
    return Minimum(best, values, broken, count, count + 1)
