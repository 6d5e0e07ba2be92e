"""Runs audits on a subject and makes the report. Measures, never judges."""

import logging
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from pydantic import JsonValue

import gradaudit
from gradaudit.accuracy import task_accuracy
from gradaudit.audits import Audit
from gradaudit.audits.rows import Rows
from gradaudit.data import describe
from gradaudit.defenses.subject import Subject
from gradaudit.errors import (
    CheckpointError,
    GradauditError,
    NotApplicable,
    UsageError,
    one_line,
    short_of_memory,
)
from gradaudit.fingerprint import fingerprint
from gradaudit.gathering import Part, gather
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.progress import Progress, Silent
from gradaudit.report import LayerRecord, Measurement, Report, Status, TargetRecord, utc_now
from gradaudit.specs import suggest
from gradaudit.units import NOTHING_KEPT, Units

log = logging.getLogger(__name__)

MOST_NAMES = 5
"""Layers that a breach of the contract names."""
_LEAST_MEMORY = 1 << 24
"""Bytes of a chunk of work below which no less is tried."""
_TIMES, _TOGETHER = 5, 32
"""Passes that are timed, and records in one of those that are passed together."""


def run(
    subject: Subject,
    audits: Sequence[Audit[Any]],
    *,
    progress: Progress | None = None,
    provenance: Mapping[str, JsonValue] | None = None,
    units: Units = NOTHING_KEPT,
) -> Report:
    """Run every audit and collect one report.

    An audit that does not apply leaves skipped rows, one that breaks leaves failed rows; either
    way every layer has a measurement or a reason. One whose rows break the contract
    (``breaches``) is broken too, and keeps its rows.

    Args:
        subject: what is audited.
        audits: configured audits, run in order.
        progress: who is told how far the work is.
        provenance: more facts to record, such as the command line.
        units: where finished work is kept, by what it depends on. An audit that is short of memory
            is tried again with chunks of half the size.

    Raises:
        AuditError: the model cannot be run on the records at all.
        UsageError: an audit's own options name something that does not exist.
        CheckpointError: or a file that is refused.
    """
    started = utc_now()
    accuracy = task_accuracy(subject.target, subject.records, expected=subject.expected)
    parts: list[Part] = []
    seconds: dict[str, JsonValue] = {}
    broken: dict[str, JsonValue] = {}
    for audit in audits:
        begun = time.perf_counter()
        work, key = subject, fingerprint(subject, audit) if units else ""
        rows: list[Measurement] = []
        short = [True]
        while short:
            work = replace(work, units=units.of(key, work.memory))
            with _filled(audit, work, rows, broken) as short:
                done = NOTHING_KEPT if _draws(audit) else work.units.of("rows")
                kept = done.kept()
                rows.extend(kept or audit.run(work, progress or Silent()))
                if not kept:
                    done.keep(rows)
            work = replace(work, memory=work.memory // 2)
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


def _draws(audit: Audit[Any]) -> bool:
    """Whether an audit writes files of its own, which are missing where its rows are read."""
    return any(isinstance(value, Path) for _, value in audit.options)


@contextmanager
def _filled(
    audit: Audit[Any], subject: Subject, rows: list[Measurement], broken: dict[str, JsonValue]
) -> Iterator[list[bool]]:
    """Let an audit fill its rows; where it breaks off, they are filled up, and ``broken`` says it.

    Something is put into the list that it yields where the audit is to be tried with less memory.

    This is no caller of the audit, so a traceback leads from the run straight to the measurement.
    """
    fault: str | None = None
    short: list[bool] = []
    try:
        yield short
    except NotApplicable as why:
        rows += _instead(audit, subject, rows, "skipped", str(why))
    except (UsageError, CheckpointError):
        raise
    except (Exception, SystemExit) as error:
        log.debug("%s failed", audit.name, exc_info=True)
        if short_of_memory(error) and subject.memory > _LEAST_MEMORY:
            rows.clear()
            short.append(True)
            return
        fault = str(error) if isinstance(error, GradauditError) else one_line(error)
    layers = [layer.name for layer in subject.layers]
    if fault is None and (faults := breaches(type(audit), rows, layers)):
        fault = "it breaks the contract of its rows: " + "; ".join(faults)
        rows[:] = {row.key: row for row in rows}.values()
    if fault is not None:
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


def breaches(
    audit: type[Audit[Any]], rows: Sequence[Measurement], layers: Sequence[str]
) -> list[str]:
    """What breaks the contract in the rows of one run, a clause each; none where all is well.

    A rule of a policy judges the rows that it finds. A metric under another name, or a layer left
    out, is a row that no rule finds; so every audit is held to what it declares.

    Rows are of the audit and of metrics that it declares, of the whole model or of a layer that is
    looked at, and no two share a key. A metric of which one layer has a headline has one for every
    layer, measured or with a reason; an audit with metrics of layers speaks of every layer.
    """
    return [*_misnamed(audit, rows), *_misplaced(audit, rows, layers), *_repeated(rows)]


def _misnamed(audit: type[Audit[Any]], rows: Sequence[Measurement]) -> Iterator[str]:
    for name in dict.fromkeys(row.audit for row in rows):
        if name != audit.reports_as():
            yield f"a row names the audit {name!r} instead of {audit.reports_as()!r}"
    declared = {metric.id: metric for metric in audit.metrics}
    for name in dict.fromkeys(row.metric for row in rows):
        if name not in declared:
            yield f"the metric {name!r} is not declared{suggest(name, declared)}"
    of_layers = (row.metric for row in rows if row.layer is not None and row.metric in declared)
    if strange := [name for name in of_layers if not declared[name].per_layer]:
        yield f"the metric {strange[0]!r} is declared for the whole model, not for layers"


def _misplaced(
    audit: type[Audit[Any]], rows: Sequence[Measurement], layers: Sequence[str]
) -> Iterator[str]:
    """Of layers that are not looked at, and of those that are left out."""
    spoken_of = dict.fromkeys(row.layer for row in rows if row.layer is not None)
    if strange := [name for name in spoken_of if name not in layers]:
        yield f"rows of {_named(strange)}, which is not looked at"
    headlines: dict[str, set[str]] = {}
    for row in rows:
        if row.layer is not None and not row.variant:
            headlines.setdefault(row.metric, set()).add(row.layer)
    for metric, with_row in headlines.items():
        if missing := [name for name in layers if name not in with_row]:
            yield f"no row of {metric} for {_named(missing)}"
    mute = [name for name in layers if name not in spoken_of]
    if mute and not headlines and any(metric.per_layer for metric in audit.metrics):
        yield f"no row at all for {_named(mute)}"


def _repeated(rows: Sequence[Measurement]) -> Iterator[str]:
    seen = set()
    for row in rows:
        if row.key in seen:
            yield f"two rows of {row.metric} for {_named([row.layer or 'the whole model'])} alike"
            return
        seen.add(row.key)


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
