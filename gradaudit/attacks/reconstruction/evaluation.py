"""Values and gradients of an objective at several points at once."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.attacks.reconstruction.minimum import Evaluation
from gradaudit.attacks.reconstruction.objectives import Objective
from gradaudit.attacks.reconstruction.products import SmallConvolutionsAsProducts
from gradaudit.attacks.reconstruction.replay import WORTH, Replayed

_FEW = 2
"""Points for which, on a CPU, setting up ``vmap`` costs more than it saves."""


class Evaluator:
    """Points (restarts, unknowns) to values (restarts,) and gradients (restarts, unknowns).

    Several points are mapped over by ``vmap``; very few are not, and models that ``vmap`` cannot
    follow are gone through point by point. What is evaluated ``worth`` times is recorded and
    repeated, see ``Replayed``.
    """

    def __init__(self, objective: Objective, worth: int = WORTH) -> None:
        self._alone = Replayed(lambda points: _alone(objective, points[0]), worth)
        self._several = Replayed(_mapped(objective), worth)
        self._mapped = True
        self._few = _FEW if objective.view.model.device.type == "cpu" else 1

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Values and gradients at points."""
        if self._mapped and len(points) > self._few:
            try:
                return self._several(points)
            except (RuntimeError, NotImplementedError):
                self._mapped = False
        return _joined([self._alone(part) for part in torch.split(points, 1)])

    def anew(self) -> Evaluator:
        """Itself, as if it had evaluated nothing; what it recorded is kept."""
        self._alone.forget_calls()
        self._several.forget_calls()
        return self


def _mapped(objective: Objective) -> Evaluation:
    """Values and gradients at points mapped over together."""
    several = torch.func.vmap(torch.func.grad_and_value(objective), randomness="same")

    def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
        with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
            gradients, values = several(points)
        return values.detach(), gradients.detach()

    return evaluate


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    if len(parts) == 1:
        return parts[0]
    values, gradients = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(gradients)


def _alone(objective: Objective, point: Tensor) -> tuple[Tensor, Tensor]:
    """Value (1,) and gradient (1, unknowns) at one point, by tape."""
    plainly = point.dtype != torch.float32 or point.device.type != "cpu"
    convolving = nullcontext() if plainly else SmallConvolutionsAsProducts()
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), convolving:
        point = point.detach().requires_grad_()
        value = objective(point, taped=True)
        gradient: Tensor
        (gradient,) = torch.autograd.grad(value, point, materialize_grads=True, allow_unused=True)
    return value.detach()[None], gradient[None]
