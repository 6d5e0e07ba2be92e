"""How fast gradients of the subject's records are here, and what audits take at that pace."""

import statistics
import time
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from gradaudit.audits import Audit
from gradaudit.defenses.subject import Subject
from gradaudit.gradients.functional import FunctionalModel

_TIMES, _TOGETHER = 5, 32
"""Passes that are timed, and records in one of those that are passed together, at most."""
_ENOUGH = 0.5
"""Seconds of passes after which no more are timed."""


@dataclass(frozen=True)
class Pace:
    """How fast gradients of a subject's records are, as just timed.

    Attributes:
        alone: seconds that one record's forward and backward pass takes.
        together: seconds a record, where some are passed together.
    """

    alone: float
    together: float

    @classmethod
    def of(cls, subject: Subject) -> Self:
        """Time some passes.

        Raises:
            AuditError: the model cannot be run on the records.
        """
        alone = _seconds(subject, 1)
        several = min(_TOGETHER, len(subject.records), max(1, int(_ENOUGH / alone)))
        return cls(alone, _seconds(subject, several) / several if several > 1 else alone)

    def seconds(self, audit: Audit[Any], subject: Subject) -> float:
        """About how long an audit takes; zero where there is nothing to do."""
        cost = audit.cost(subject)
        if not cost.passes:
            return 0.0
        return self.together * cost.passes + self.alone * cost.calls + cost.seconds


def _seconds(subject: Subject, records: int) -> float:
    """Median time of some forward and backward passes of the first records, after a first one."""
    model = FunctionalModel.of(subject.target)
    taken = subject.records.take(np.arange(records))
    inputs, labels = model.cast(taken.inputs), model.cast(taken.labels)
    model.check(inputs, labels)
    gradient = torch.func.grad(lambda weights: model.losses(weights, inputs, labels).sum())
    gradient(model.parameters)
    durations: list[float] = []
    while len(durations) < _TIMES and sum(durations) < _ENOUGH:
        begun = time.perf_counter()
        gradient(model.parameters)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        durations.append(time.perf_counter() - begun)
    return statistics.median(durations)
