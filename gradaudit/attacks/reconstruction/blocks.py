"""Restarts in blocks, each minimised on its own: in turn, or by worker processes.

Floating-point numbers of a batch depend on its size. How restarts are put into blocks therefore
follows from the model and from how many there are, never from the machine or its workers, and a
block's numbers are the same wherever it is worked on.
"""

import time
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Protocol

import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.evaluation import Evaluator
from gradaudit.attacks.reconstruction.objectives import Evaluation, Minimum, Objective
from gradaudit.progress import Advance
from gradaudit.workers import shared_out

MEMORY = 1 << 30
"""Bytes that the blocks which are worked on at one time may take."""
_LEAST_ROWS, _MOST_ROWS, _MOST_ROWS_ON_A_GPU = 4, 8, 32
_COSTS_OF_WORKERS = 10.0
"""Seconds of work below which starting workers may not pay."""
_BYTES_A_ROW = 64


def rows_of(restarts: int) -> int:
    """How many restarts are in a block: few are halved, so that two workers have some each."""
    return max(_LEAST_ROWS, min(_MOST_ROWS, ceil(restarts / 2)))


def blocks_of(restarts: int) -> int:
    """How many blocks there are on a CPU at least; more where memory is short."""
    return ceil(restarts / rows_of(restarts))


class Descent(Protocol):
    """What every block goes through; it can be shipped to another process."""

    def __call__(self, evaluate: Evaluation, points: Tensor, advance: Advance) -> Minimum:
        """Minimise from points (rows, unknowns)."""
        ...


@dataclass(frozen=True)
class Blocks:
    """Blocks of restarts.

    Attributes:
        objective: that is minimised.
        descent: how.
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
    """One block in a worker."""
    return descent(Evaluator(objective), points, advance)
