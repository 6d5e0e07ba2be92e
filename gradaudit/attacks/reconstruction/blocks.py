"""Restarts in blocks, each evaluated together and minimised on its own, in turn or by workers.

Floating-point numbers of a batch depend on its size. How restarts are put into blocks therefore
follows from the model and from how many there are, never from the machine or its workers, and a
block's numbers are the same wherever it is worked on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from gradaudit.attacks.reconstruction.objectives import Evaluation, Minimum, Objective
from gradaudit.attacks.reconstruction.replay import WORTH, Replayed
from gradaudit.progress import Advance
from gradaudit.workers import shared_out

MOST_COLUMNS = 1 << 16
"""Elements of an unfolded input up to which a convolution becomes a product."""
MEMORY = 1 << 30
"""Bytes that the blocks which are worked on at one time may take."""
_LEAST_ROWS, _MOST_ROWS, _MOST_ROWS_ON_A_GPU = 4, 8, 32
_COSTS_OF_WORKERS = 10.0
"""Seconds of work below which starting workers may not pay."""
_BYTES_A_ROW = 64
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
        if len(points) == 1:
            return self._alone(points)
        pairs = [self._alone(part) for part in torch.split(points, 1)]
        values, gradients = zip(*pairs, strict=True)
        return torch.cat(values), torch.cat(gradients)

    def anew(self) -> Evaluator:
        """Itself, as if it had evaluated nothing; what it recorded is kept."""
        self._alone.forget_calls()
        self._several.forget_calls()
        return self


def _mapped(objective: Objective) -> Evaluation:
    several = torch.func.vmap(torch.func.grad_and_value(objective), randomness="same")

    def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
        with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
            gradients, values = several(points)
        return values.detach(), gradients.detach()

    return evaluate


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


def rows_of(restarts: int) -> int:
    """How many restarts are in a block: few are halved, so that two workers have some each."""
    return max(_LEAST_ROWS, min(_MOST_ROWS, ceil(restarts / 2)))


def blocks_of(restarts: int) -> int:
    """How many blocks there are on a CPU at least; more where memory is short."""
    return ceil(restarts / rows_of(restarts))


Descent = Callable[[Evaluation, Tensor, Advance], Minimum]
"""What every block goes through from points (rows, unknowns); it can be shipped to a process."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of restarts.

    Attributes:
        kept: numbers that the descent keeps of a restart.
        evaluations: of a restart, at most.
    """

    objective: Objective
    descent: Descent
    kept: int
    evaluations: int

    def minimised(self, points: Tensor, jobs: int, advance: Advance) -> Minimum:
        """Where every restart ends, in order.

        Args:
            points: (restarts, unknowns) where they begin.
            jobs: worker processes at most; fewer where memory or the work is short.
            advance: told of every step of every restart.
        """
        parts = torch.split(points, self.rows(len(points)))
        evaluate = Evaluator(self.objective)
        workers = self._workers(parts, jobs, evaluate)
        if workers > 1:
            tasks = [partial(_in_a_worker, self.objective, self.descent, part) for part in parts]
            return Minimum.joined(shared_out(tasks, workers, advance))
        return Minimum.joined([self.descent(evaluate.anew(), part, advance) for part in parts])

    def rows(self, restarts: int) -> int:
        """How many restarts are in a block."""
        gpu = self.objective.view.model.device.type != "cpu"
        most = _MOST_ROWS_ON_A_GPU if gpu else rows_of(restarts)
        return max(1, min(most, MEMORY // self._bytes_a_row))

    @property
    def _bytes_a_row(self) -> int:
        view, size = self.objective.view, self.objective.view.dtype.itemsize
        parameters = sum(weights.numel() for weights in view.model.parameters.values())
        evaluated = parameters + view.batch * parameters // 8 + view.elements
        return max(1, _BYTES_A_ROW * evaluated + size * self.kept)

    def _workers(self, parts: tuple[Tensor, ...], jobs: int, evaluate: Evaluation) -> int:
        """As many as there are blocks for, as fit into memory and as are worth it."""
        fit = MEMORY // (self._bytes_a_row * len(parts[0]))
        workers = min(jobs, len(parts), fit)
        if workers < 2 or self.objective.view.model.device.type != "cpu":
            return 1
        evaluate(parts[0])
        begun = time.perf_counter()
        evaluate(parts[0])
        seconds = (time.perf_counter() - begun) * len(parts) * self.evaluations
        return workers if seconds >= _COSTS_OF_WORKERS else 1


def _in_a_worker(
    objective: Objective, descent: Descent, points: Tensor, advance: Advance
) -> Minimum:
    return descent(Evaluator(objective), points, advance)


class SmallConvolutionsAsProducts(TorchFunctionMode):
    """Lets two-dimensional convolutions of small inputs run as products with unfolded inputs.

    The numbers are the same but for rounding. In float32 on a CPU the library's set-up costs more:
    a single restart of DLG on LeNet is evaluated 1.2 times as fast, and 1.7 times where it is
    recorded (benchmarks/fast_paths.py, one thread).
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """``product_of`` for ``conv2d`` where it applies, everything else as it is."""
        if func is torch.conv2d:
            product = product_of(*args, **(kwargs or {}))
            if product is not None:
                return product
        return func(*args, **(kwargs or {}))


def product_of(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """What ``conv2d`` gives for these arguments, None where it is to do it itself."""
    if input.dim() != 4 or groups != 1 or isinstance(padding, str):
        return None
    stride, padding, dilation = _pair(stride), _pair(padding), _pair(dilation)
    kernel = (weight.shape[2], weight.shape[3])
    height, width = (
        (input.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    )
    if not 0 < weight[0].numel() * len(input) * height * width <= MOST_COLUMNS:
        return None
    columns = F.unfold(input, kernel, dilation, padding, stride)
    output = (weight.flatten(1) @ columns).reshape(len(input), len(weight), height, width)
    return output if bias is None else output + bias[:, None, None]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])
