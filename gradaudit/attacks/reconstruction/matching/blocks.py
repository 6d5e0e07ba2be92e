"""Restarts in blocks, each evaluated together and minimised on its own, in turn or by workers.

Floating-point numbers of a batch depend on its size. How restarts are put into blocks therefore
follows from the model and from how many there are, never from the machine or its workers, and a
block's numbers are the same wherever it is worked on. On a GPU it follows from that one's memory,
too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.attacks.reconstruction.matching.folded import foldable, folded
from gradaudit.attacks.reconstruction.matching.objectives import Evaluation, Minimum, Objective
from gradaudit.executors.workers import shared_out
from gradaudit.gradients.memory import device_memory, peak_bytes
from gradaudit.progress import Advance

MEMORY = 1 << 30
"""Bytes that the blocks which are worked on at one time may take on a CPU."""
_LEAST_ROWS, _MOST_ROWS, _MOST_ROWS_ON_A_GPU = 8, 16, 32
_WIDE, _LONG = 1 << 20, 1000
"""Bytes that an evaluation of a restart makes, and evaluations at most, from which on it pays to
begin in single precision: with fewer bytes operations cost by their number, which is the same."""
_FEW = 2
"""Points for which, on a CPU, setting up ``vmap`` costs more than it saves."""


class Evaluator:
    """Points (restarts, unknowns) to values (restarts,) and gradients (restarts, unknowns).

    Several points are folded into one batch where that gives what each gives alone, and otherwise
    mapped over by ``vmap``; very few are not, and models that ``vmap`` cannot follow are gone
    through point by point. Points of another precision than the objective's are evaluated in
    theirs.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._mapped = True
        self._in_precision: dict[torch.dtype, Evaluator] = {}

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Values and gradients at points."""
        if points.dtype != self._objective.view.dtype:
            return self._in(points.dtype)(points)
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

    def _in(self, precision: torch.dtype) -> Evaluator:
        if precision not in self._in_precision:
            objective = self._objective.in_precision(precision)
            self._in_precision[precision] = Evaluator(objective)
        return self._in_precision[precision]

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


def rows_of(restarts: int) -> int:
    """Choose how many restarts a block has: few are halved, so that two workers have some."""
    return max(_LEAST_ROWS, min(_MOST_ROWS, ceil(restarts / 2)))


def blocks_of(restarts: int) -> int:
    """Choose the least number of blocks on a CPU; memory may require more."""
    return ceil(restarts / rows_of(restarts))


class Descent(Protocol):
    """A minimiser of every block of restarts; it can be sent to a worker process."""

    def __call__(self, evaluate: Evaluation, start: Tensor, *, advance: Advance) -> Minimum:
        """Minimise from points (rows, unknowns)."""
        ...


@dataclass(frozen=True)
class Blocks:
    """Blocks of restarts.

    Attributes:
        kept: numbers that the descent keeps of a restart.
        evaluations: of a restart, at most.
        mixed: whether the descent can begin in single precision and go on in the objective's, as
            it does where evaluations are many and large and the model allows it.
    """

    objective: Objective
    descent: Descent
    kept: int
    evaluations: int
    mixed: bool = False

    def minimised(self, points: Tensor, jobs: int, advance: Advance) -> Minimum:
        """The minimum of every restart, in order.

        Args:
            points: (restarts, unknowns) where they begin.
            jobs: worker processes at most; fewer where memory is short.
            advance: called for every step of every restart.
        """
        points = points.float() if self._mixes else points
        parts = torch.split(points, self.rows(len(points)))
        evaluate = Evaluator(self.objective)
        workers = self._workers(parts, jobs)
        if workers > 1:
            tasks = [partial(_in_a_worker, self.objective, self.descent, part) for part in parts]
            return Minimum.joined(shared_out(tasks, workers, advance, patience=0))
        minima = []
        for part in parts:
            minimum = self.descent(evaluate, part, advance=advance)
            minima.append(minimum)  # a comprehension is one more call to the numbers
        return Minimum.joined(minima)

    def rows(self, restarts: int) -> int:
        """The number of restarts in a block."""
        if restarts == 1:
            return 1
        device = self.objective.view.model.device
        most = rows_of(restarts) if device.type == "cpu" else _MOST_ROWS_ON_A_GPU
        return max(1, min(most, restarts, device_memory(device, MEMORY) // self._bytes_a_row))

    @property
    def _bytes_a_row(self) -> int:
        """Bytes that a restart takes while it is evaluated, and that the descent keeps.

        That is in two precisions for a moment, where one follows the other.
        """
        kept = self.objective.view.dtype.itemsize * self.kept
        return max(1, self._bytes_evaluated + kept + (kept // 2 if self._mixes else 0))

    @cached_property
    def _mixes(self) -> bool:
        pays = self.evaluations >= _LONG and self._bytes_evaluated >= _WIDE
        return self.mixed and pays and self._runs_in_single_precision

    @property
    def _runs_in_single_precision(self) -> bool:
        try:
            Evaluator(self.objective)(self.objective.trial_points(1).float())
        except Exception:  # of a model, or a loss of a file, that makes tensors in double precision
            return False
        return True

    @cached_property
    def _bytes_evaluated(self) -> int:
        """Half of what two restarts take when they are evaluated."""
        points = self.objective.trial_points(2)
        evaluate = Evaluator(self.objective)
        evaluate(points)
        return peak_bytes(partial(evaluate, points)) // 2

    def _workers(self, parts: tuple[Tensor, ...], jobs: int) -> int:
        """Workers: as many as there are blocks for, and as fit into memory; one on a device."""
        if self.objective.view.model.device.type != "cpu" or min(jobs, len(parts)) < 2:
            return 1
        return max(1, min(jobs, len(parts), MEMORY // (self._bytes_a_row * len(parts[0]))))


def _in_a_worker(
    objective: Objective, descent: Descent, points: Tensor, advance: Advance
) -> Minimum:
    return descent(Evaluator(objective), points, advance=advance)
