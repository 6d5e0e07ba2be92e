"""Restarts evaluated together, and how many at a time.

Floating-point numbers of a batch depend on its size: how many restarts are taken together follows
from the model and, on a GPU, from its memory.
"""

from __future__ import annotations

from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.attacks.reconstruction.matching.folded import foldable, folded
from gradaudit.attacks.reconstruction.matching.objectives import Evaluation, Objective
from gradaudit.gradients.memory import device_memory, peak_bytes

MEMORY = 1 << 30
"""Bytes that restarts which are evaluated together may take on a CPU."""
_MOST_ROWS, _MOST_ROWS_ON_A_GPU = 16, 32
_FEW = 2
"""Points for which, on a CPU, setting up ``vmap`` costs more than it saves."""


class Evaluator:
    """Points (restarts, unknowns) to values (restarts,) and gradients (restarts, unknowns).

    Several points are folded into one batch where that gives what each gives alone, and otherwise
    mapped over by ``vmap``; very few are not, and models that ``vmap`` cannot follow are gone
    through point by point.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._mapped = True

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Values and gradients at points."""
        if len(points) == 1:
            return _alone(self._objective, points)
        several, few = self._several
        if self._mapped and len(points) > few:
            try:
                return several(points)
            except (RuntimeError, NotImplementedError):
                self._mapped = False
        pairs = [_alone(self._objective, part) for part in torch.split(points, 1)]
        values, gradients = zip(*pairs, strict=True)
        return torch.cat(values), torch.cat(gradients)

    def rows(self, restarts: int, kept: int) -> int:
        """The number of restarts that are taken together.

        Args:
            restarts: of all.
            kept: numbers that an optimiser keeps of each.
        """
        if restarts == 1:
            return 1
        device, points = self._objective.view.model.device, self._objective.trial_points(2)
        self(points)
        each = peak_bytes(partial(self, points)) // 2 + kept * points.element_size()
        most = _MOST_ROWS if device.type == "cpu" else _MOST_ROWS_ON_A_GPU
        return max(1, min(most, restarts, device_memory(device, MEMORY) // max(1, each)))

    @cached_property
    def _several(self) -> tuple[Evaluation, int]:
        """Choose how several points are evaluated, and the least number for it."""
        objective = self._objective
        if foldable(objective, partial(_alone, objective)):
            return folded(objective), 1
        return _mapped(objective), _FEW if objective.view.model.device.type == "cpu" else 1


def _mapped(objective: Objective) -> Evaluation:
    several = torch.func.vmap(torch.func.grad_and_value(objective), randomness="same")

    def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
        with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
            gradients, values = several(points)
        return values.detach(), gradients.detach()

    return evaluate


def _alone(objective: Objective, points: Tensor) -> tuple[Tensor, Tensor]:
    """Value (1,) and gradient (1, unknowns) at one point (1, unknowns), by tape."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        point = points[0].detach().requires_grad_()
        value = objective(point, taped=True)
        gradient: Tensor
        (gradient,) = torch.autograd.grad(value, point, materialize_grads=True, allow_unused=True)
    return value.detach()[None], gradient[None]
