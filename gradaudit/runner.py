"""Runs audits on a subject and makes the report. Measures, never judges."""

import logging
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from pydantic import JsonValue

import gradaudit
from gradaudit.accuracy import task_accuracy
from gradaudit.audits import Audit
from gradaudit.audits.rows import Rows
from gradaudit.contract import breaches
from gradaudit.data import describe
from gradaudit.errors import GradauditError, NotApplicable, UsageError, one_line
from gradaudit.gathering import Part, gather
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Subject
from gradaudit.progress import Progress, Silent
from gradaudit.report import LayerRecord, Measurement, Report, Status, TargetRecord, utc_now

log = logging.getLogger(__name__)

_TIMES, _TOGETHER = 5, 32
"""Passes that are timed, and records in one of those that are passed together."""


def run(
    subject: Subject,
    audits: Sequence[Audit[Any]],
    *,
    progress: Progress | None = None,
    provenance: Mapping[str, JsonValue] | None = None,
) -> Report:
    """Run every audit and collect one report.

    An audit that does not apply leaves skipped rows, one that breaks leaves failed rows; either
    way every layer has a measurement or a reason. One whose rows break the contract
    (``gradaudit.contract``) is broken too, and keeps its rows.

    Args:
        subject: what is audited.
        audits: configured audits, run in order.
        progress: who is told how far the work is.
        provenance: more facts to record, such as the command line.

    Raises:
        AuditError: the model cannot be run on the records at all.
        UsageError: an audit's own options name something that does not exist.
    """
    started = utc_now()
    accuracy = task_accuracy(subject.target, subject.records, expected=subject.expected)
    parts: list[Part] = []
    seconds: dict[str, JsonValue] = {}
    broken: dict[str, JsonValue] = {}
    for audit in audits:
        begun = time.perf_counter()
        rows: list[Measurement] = []
        with _kept(audit, subject, rows, broken):
            rows.extend(audit.run(subject, progress or Silent()))
        parts.append(Part.of(audit, rows))
        seconds[audit.name] = round(time.perf_counter() - begun, 3)
    return Report(
        tool={"name": "gradaudit", "version": gradaudit.__version__},
        target=_describe_target(subject),
        data={**describe(subject.records), "accuracy": accuracy.to_json()},
        provenance={
            "seed": subject.seed,
            "jobs": subject.jobs,
            "defenses": [str(defense) for defense in subject.defenses],
            "device": str(subject.target.device),
            "threads": torch.get_num_threads(),
            "started": started,
            "finished": utc_now(),
            "seconds": seconds,
            "broken": broken,
            "audits": {audit.name: audit.options.model_dump(mode="json") for audit in audits},
            "versions": {
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "numpy": np.__version__,
            },
            **(provenance or {}),
        },
        measurements=gather(parts),
    )


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
        several = min(_TOGETHER, len(subject.records))
        return cls(_seconds(subject, 1), _seconds(subject, several) / several)

    def seconds(self, audit: Audit[Any], subject: Subject) -> float:
        """About how long an audit takes; zero where there is nothing to do."""
        cost = audit.cost(subject)
        if not cost.passes:
            return 0.0
        return self.together * cost.passes + self.alone * cost.calls + cost.seconds


def _seconds(subject: Subject, records: int) -> float:
    """Median time of a forward and backward pass of the first records."""
    model = FunctionalModel.of(subject.target)
    taken = subject.records.take(np.arange(records))
    inputs, labels = model.cast(taken.inputs), model.cast(taken.labels)
    model.check(inputs, labels)
    gradient = torch.func.grad(lambda weights: model.losses(weights, inputs, labels).sum())
    durations = []
    for _ in range(_TIMES):
        begun = time.perf_counter()
        gradient(model.parameters)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        durations.append(time.perf_counter() - begun)
    return statistics.median(durations)


@contextmanager
def _kept(
    audit: Audit[Any], subject: Subject, rows: list[Measurement], broken: dict[str, JsonValue]
) -> Iterator[None]:
    """Let an audit fill its rows; where it breaks off, they are filled up, and ``broken`` says it.

    This is no caller of the audit, so a traceback leads from the run straight to the measurement.
    """
    fault = ""
    try:
        yield
    except NotApplicable as why:
        rows += _instead(audit, subject, rows, "skipped", str(why))
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        log.debug("%s failed", audit.name, exc_info=True)
        fault = str(error) if isinstance(error, GradauditError) else one_line(error)
    else:
        if faults := breaches(type(audit), rows, [layer.name for layer in subject.layers]):
            fault = "it breaks the contract of its rows: " + "; ".join(faults)
            rows[:] = {row.key: row for row in rows}.values()
    if fault:
        rows += _instead(audit, subject, rows, "failed", fault)
        broken[audit.name] = fault


def _instead(
    audit: Audit[Any], subject: Subject, rows: Sequence[Measurement], status: Status, reason: str
) -> list[Measurement]:
    """Rows with a reason for everything that ``rows`` has no headline of."""
    done = {(row.metric, row.layer) for row in rows if not row.variant}
    names = [layer.name for layer in subject.layers]
    return [
        row
        for metric in audit.metrics
        for row in Rows(type(audit)).unmeasured(
            status, reason, [metric.id], names if metric.per_layer else [None]
        )
        if (row.metric, row.layer) not in done
    ]


def _describe_target(subject: Subject) -> TargetRecord:
    target = subject.target
    return TargetRecord(
        model=target.description,
        checkpoints=[t.checkpoint for t in subject.targets if t.checkpoint is not None],
        parameters=sum(parameter.numel() for parameter in target.model.parameters()),
        layers=[
            LayerRecord(name=x.name, kind=x.kind, parameters=x.parameters, position=x.position)
            for x in subject.layers
        ],
        loss=target.loss.name,
        mode=target.mode,
    )
