"""Runs audits on a subject and makes the report. Measures, never judges."""

import logging
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import JsonValue

import gradaudit
from gradaudit.accuracy import task_accuracy
from gradaudit.audits import Audit
from gradaudit.contract import breaches
from gradaudit.data import describe
from gradaudit.errors import (
    CheckpointError,
    GradauditError,
    NotApplicable,
    UsageError,
    one_line,
)
from gradaudit.gathering import Part, gather
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Subject
from gradaudit.progress import Progress, Silent
from gradaudit.report import (
    LayerRecord,
    Measurement,
    Report,
    TargetRecord,
    utc_now,
)

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
        CheckpointError: or a file that is refused.
    """
    started = utc_now()
    data = _describe_data(subject)
    parts: list[Part] = []
    seconds: dict[str, JsonValue] = {}
    broken: dict[str, JsonValue] = {}
    for audit in audits:
        begun = time.perf_counter()
        own, fault = _rows(audit, subject, progress or Silent())
        parts.append(Part.of(audit, own))
        seconds[audit.name] = round(time.perf_counter() - begun, 3)
        if fault:
            broken[audit.name] = fault
    return Report(
        tool={"name": "gradaudit", "version": gradaudit.__version__},
        target=_describe_target(subject),
        data=data,
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
            "versions": _versions(),
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


def _rows(
    audit: Audit[Any], subject: Subject, progress: Progress
) -> tuple[list[Measurement], str | None]:
    """An audit's rows, and what made it break off, if anything did."""
    rows: list[Measurement] = []
    try:
        rows.extend(audit.run(subject, progress))
    except NotApplicable as why:
        rows += _instead(audit, subject, rows, "skipped", str(why))
    except (UsageError, CheckpointError):
        raise
    except (Exception, SystemExit) as error:
        log.debug("%s failed", audit.name, exc_info=True)
        fault = str(error) if isinstance(error, GradauditError) else one_line(error)
        return rows + _instead(audit, subject, rows, "failed", fault), fault
    faults = breaches(type(audit), rows, [layer.name for layer in subject.layers])
    if not faults:
        return rows, None
    fault = "it breaks the contract of its rows: " + "; ".join(faults)
    rows = list({row.key: row for row in rows}.values())
    return rows + _instead(audit, subject, rows, "failed", fault), fault


def _instead(
    audit: Audit[Any],
    subject: Subject,
    rows: Sequence[Measurement],
    status: Literal["skipped", "failed"],
    reason: str,
) -> list[Measurement]:
    """Rows with a reason for everything that ``rows`` has no headline of."""
    done = {(row.metric, row.layer) for row in rows if not row.variant}
    names = [layer.name for layer in subject.layers]
    wanted = (
        (metric.id, layer)
        for metric in audit.metrics
        for layer in (names if metric.per_layer else [None])
    )
    return [
        Measurement(
            audit=audit.reports_as(), metric=metric, layer=layer, status=status, reason=reason
        )
        for metric, layer in wanted
        if (metric, layer) not in done
    ]


def _describe_target(subject: Subject) -> TargetRecord:
    target = subject.target
    return TargetRecord(
        model=target.description,
        checkpoints=[t.checkpoint for t in subject.targets if t.checkpoint is not None],
        parameters=sum(parameter.numel() for parameter in target.model.parameters()),
        layers=[
            LayerRecord(
                name=layer.name,
                kind=layer.kind,
                parameters=layer.parameters,
                position=layer.position,
            )
            for layer in subject.layers
        ],
        loss=target.loss.name,
        mode=target.mode,
    )


def _describe_data(subject: Subject) -> dict[str, JsonValue]:
    accuracy = task_accuracy(subject.target, subject.records, expected=subject.expected)
    return {**describe(subject.records), "accuracy": accuracy.to_json()}


def _versions() -> dict[str, JsonValue]:
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
