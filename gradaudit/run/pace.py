"""Measures the time of the subject's gradients here, and estimates audits' times from it."""

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gradaudit.audits import Audit
from gradaudit.core.parts import without_garbage_collection
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.precision import slowness_of_double
from gradaudit.subject import Subject

log = logging.getLogger(__name__)

_TIMES, _FEWEST, _TOGETHER = 5, 4, 32
"""Largest number of timed passes, and numbers of records in a pass: fewest, and together."""
_LONG = 2.0
"""Seconds of a first pass from which on no other pass is timed."""
_MOST_SLOWED = 10.0
"""Largest slowdown by other processes that is assumed, as the clock of this process is coarse."""
_ENOUGH = 0.5
"""Total seconds of timed passes after which no further pass is timed."""
_BOUND = 0.25
"""Seconds of a pass from which on it is taken to be bound by arithmetic, so that double precision
is estimated from it: of Swin and ResNet-50 (0.4 seconds) it takes 2.2 times as long, as products
of matrices do; of smaller models 1.5 to 6 times."""


@dataclass(frozen=True)
class Passes:
    """Time of forward and backward passes in one precision.

    Attributes:
        alone: seconds of one record.
        together: seconds for each record when several are passed together.
    """

    alone: float
    together: float

    def slower(self, times: float) -> Self:
        """Returns the times multiplied by a factor."""
        return replace(self, alone=self.alone * times, together=self.together * times)


@dataclass(frozen=True)
class Pace:
    """Time of gradients of a subject's records in both precisions, as just measured.

    Attributes:
        single: of single precision.
        double: of double precision.
        slowdown: elapsed seconds over the seconds that this process computed while it was timed:
            more than 1 where it shares the cores with other processes.
    """

    single: Passes
    double: Passes
    slowdown: float = 1.0

    @classmethod
    def of(cls, subject: Subject) -> Self:
        """Measures some passes of the subject.

        Raises:
            AuditError: the model cannot be run on the records.
        """
        _load_gradients()
        begun, computed = time.perf_counter(), time.thread_time()
        single = _timed(subject, torch.float32)
        slowdown = (time.perf_counter() - begun) / max(time.thread_time() - computed, 1e-6)
        on_cpu = subject.target.device.type == "cpu"
        slowdown = min(max(slowdown, 1.0), _MOST_SLOWED) if on_cpu else 1.0
        if subject.target.precision is torch.float32:
            return cls(single, single, slowdown)
        if single.alone > _BOUND:
            double = single.slower(slowness_of_double(subject.target.device))
            return cls(single, double, slowdown)
        slower = _seconds(subject, 1, torch.float64) / single.alone
        return cls(single, single.slower(slower), slowdown)

    def seconds(self, audit: Audit[Any], subject: Subject) -> float:
        """Estimates an audit's seconds; zero where there is nothing to do, or nothing is known."""
        try:
            cost = audit.cost(subject)
        except Exception as error:  # whatever a model raises; its run will say it
            log.debug("%s: no cost: %s", audit.name, error)
            return 0.0
        if not cost.passes:
            return 0.0
        double = cost.double and subject.target.precision is torch.float64
        passes = self.double if double else self.single
        timed = passes.together * cost.passes + passes.alone * cost.calls
        return timed + cost.seconds * self.slowdown


def _load_gradients() -> None:
    """Compute one trivial gradient, as the first in a process loads torch's compiler for a second.

    A first pass that takes so long would be taken for the model's own time.
    """
    with without_garbage_collection():
        torch.func.grad(torch.sum)(torch.zeros(1))


def _timed(subject: Subject, dtype: torch.dtype) -> Passes:
    alone = _seconds(subject, 1, dtype)
    several = min(_TOGETHER, len(subject.records), int(_ENOUGH / alone))
    if several < _FEWEST:
        return Passes(alone, alone)
    return Passes(alone, _seconds(subject, several, dtype) / several)


def _seconds(subject: Subject, records: int, dtype: torch.dtype) -> float:
    """Returns the mean time of some forward and backward passes of the first records.

    What else the machine does makes them longer, and will do so to the audits. What a first one
    loads it does once, so it is not counted. In evaluation mode, in which a record can be alone.
    """
    model = FunctionalModel.of(replace(subject.target, mode="eval"), dtype=dtype)
    taken = subject.records.take(np.arange(records))
    inputs, labels = model.cast(taken.inputs), model.cast(taken.labels)
    model.check(inputs, labels)
    gradient = torch.func.grad(lambda weights: model.losses(weights, inputs, labels).sum())
    try:
        return _mean_seconds(lambda: gradient(model.parameters), model.device)
    except RuntimeError:  # of a module that torch.func does not take
        return _mean_seconds(lambda: _eager_gradient(model, inputs, labels), model.device)


def _eager_gradient(model: FunctionalModel, inputs: Tensor, labels: Tensor) -> None:
    weights = {name: weight.detach().requires_grad_() for name, weight in model.parameters.items()}
    loss = model.losses(weights, inputs, labels).sum()
    torch.autograd.grad(loss, list(weights.values()), allow_unused=True)


def _mean_seconds(function: Callable[[], object], device: torch.device) -> float:
    """Returns the mean time of some calls after the first, or the time of a long first call."""
    durations: list[float] = []
    while len(durations) <= _TIMES and sum(durations[1:]) < _ENOUGH:
        begun = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        durations.append(time.perf_counter() - begun)
        if durations[0] > _LONG:
            break
    return statistics.fmean(durations[1:] or durations)
