"""Runs audits on a subject and makes the report; it measures and never judges."""

import logging
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from pydantic import JsonValue

from gradaudit._version import __version__
from gradaudit.accuracy import FLOPS, TaskAccuracy, task_accuracy
from gradaudit.audits import Audit
from gradaudit.audits.contract import breaches
from gradaudit.audits.gathering import AuditRows, gather
from gradaudit.audits.rows import Rows
from gradaudit.data import describe
from gradaudit.defenses import Chain
from gradaudit.errors import (
    CheckpointError,
    GradauditError,
    NotApplicable,
    TooFewRecords,
    UsageError,
    foreign,
    one_line,
    short_of_memory,
)
from gradaudit.executors.stopping import TimeIsUp, time_limit
from gradaudit.executors.workers import one_thread
from gradaudit.gradients.precision import full_single_precision
from gradaudit.gradients.substitutes import recomputes
from gradaudit.measurement import TOO_FEW
from gradaudit.progress import Progress, Silent
from gradaudit.report import LayerRecord, Measurement, Report, Status, TargetRecord, utc_now
from gradaudit.run.deployment_setting import with_setting
from gradaudit.run.effort import with_effort
from gradaudit.subject import Subject

log = logging.getLogger(__name__)

_LEAST_MEMORY = 1 << 24
"""Smallest chunk of work in bytes; below it memory is not halved again."""
CUT_SHORT = "its share of the time was up (a longer --budget gives more)"


def run(
    subject: Subject,
    audits: Sequence[Audit[Any]],
    *,
    progress: Progress | None = None,
    provenance: Mapping[str, JsonValue] | None = None,
) -> Report:
    """Runs every audit and returns one report.

    An audit that does not apply leaves skipped rows, one that breaks leaves failed rows; either
    way every layer has a measurement or a reason. One whose rows break the contract
    (``breaches``) is broken too, and keeps its rows.

    Args:
        subject: what is audited.
        audits: configured audits, run in order.
        progress: receives how far the work is.
        provenance: more facts to record, such as the command line.

    Raises:
        AuditError: the model cannot be run on the records at all.
        UsageError: an audit's own options name something that does not exist.
        CheckpointError: or a file that is refused.
    """
    done = Run.begun(subject)
    for audit in audits:
        asked = subject.about(audit.attributes)
        done.outcomes.append(measured(asked, audit, progress or Silent()))
    return done.report(provenance)


@dataclass(frozen=True)
class Outcome:
    """The outcome of an audit: its rows, its time and its fault, if any.

    Attributes:
        part: its rows.
        seconds: seconds that it took; of rows taken up, in the run that made them.
        fault: why it broke off; None where it did not.
        whole: whether it was done, and not cut short.
    """

    part: AuditRows
    seconds: float
    fault: str | None = None
    whole: bool = True

    @property
    def measured(self) -> bool:
        """Whether the outcome holds a number."""
        return any(row.number is not None for row in self.part.rows)


def measured(
    subject: Subject,
    audit: Audit[Any],
    progress: Progress,
    seconds: float | None = None,
) -> Outcome:
    """Runs one audit within a time limit; at its end the rows found by then are kept.

    One that is short of memory is tried again with chunks of half the size, and at last in single
    precision.

    Raises:
        UsageError: its options name something that does not exist.
        CheckpointError: or a file that is refused.
    """
    begun = time.perf_counter()
    work, trial = subject, _Trial(audit, subject)
    while trial.again:
        smaller = _with_less(work, audit)
        with trial.filled(short=smaller is not None):
            left = None if seconds is None else seconds - (time.perf_counter() - begun)
            threads = one_thread() if audit.one_thread else nullcontext()
            with time_limit(left), full_single_precision(), threads:
                trial.rows.extend(audit.run(work, progress))
        precision, work = work.target.precision, smaller or work
    rows: Sequence[Measurement] = trial.rows
    if precision is not subject.target.precision:
        rows = [row.with_details({"dtype": _named(precision)}) for row in rows]
    rows = with_effort(with_setting(_undefended(rows, audit, subject), audit, subject), audit)
    part = AuditRows.of(audit, rows)
    return Outcome(part, time.perf_counter() - begun, trial.fault, trial.whole)


def _with_less(subject: Subject, audit: Audit[Any]) -> Subject | None:
    """Returns the subject with half the memory, or in single precision at the smallest memory.

    That is enough for audits whose least size is in single precision.
    """
    if subject.memory > _LEAST_MEMORY:
        return replace(subject, memory=subject.memory // 2)
    if subject.target.precision is torch.float64 and audit.least.get("single"):
        return replace(subject.in_precision(torch.float32), memory=Subject.memory)
    return None


def _undefended(
    rows: Sequence[Measurement], audit: Audit[Any], subject: Subject
) -> Sequence[Measurement]:
    """Note in the rows of an audit that applies no defenses that those of updates are left out."""
    if audit.applies_defenses or not Chain(subject.defenses).acting:
        return rows
    note = {"defenses": "measured without the defenses of updates"}
    return [row if "defenses" in row.details else row.with_details(note) for row in rows]


def _named(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


@dataclass
class Run:
    """A run: the subject, the outcomes of its audits, and their report at any time."""

    subject: Subject
    accuracy: TaskAccuracy
    started: str
    outcomes: list[Outcome] = field(default_factory=list)

    @classmethod
    def begun(cls, subject: Subject, share: float = 1.0) -> Self:
        """Starts a run by measuring the model's accuracy, in a share of the usual operations.

        Raises:
            AuditError: the model cannot be run on the records.
        """
        started = utc_now()
        accuracy = task_accuracy(
            subject.target, subject.records, expected=subject.expected, operations=share * FLOPS
        )
        return cls(subject, accuracy, started)

    def report(self, provenance: Mapping[str, JsonValue] | None = None) -> Report:
        """Returns the report of the finished audits."""
        subject = self.subject
        audits = {outcome.part.audit.name: outcome for outcome in self.outcomes}
        return Report(
            tool={"name": "gradaudit", "version": __version__},
            target=_describe_target(subject),
            data={**describe(subject.records), "accuracy": self.accuracy.to_json()},
            provenance={
                "seed": subject.seed,
                "jobs": subject.jobs,
                "defenses": [str(defense) for defense in subject.defenses],
                "attributes": list(subject.attributes),
                "hidden": list(subject.hidden),
                **_left_aside(subject),
                **_notes(subject),
                "deployment": _described(subject),
                "device": str(subject.target.device),
                "dtype": _named(subject.target.precision),
                "tf32": False,
                "threads": torch.get_num_threads(),
                "started": self.started,
                "finished": utc_now(),
                "seconds": {name: round(outcome.seconds, 3) for name, outcome in audits.items()},
                "broken": {name: done.fault for name, done in audits.items() if done.fault},
                "audits": {
                    name: outcome.part.audit.options.model_dump(mode="json")
                    for name, outcome in audits.items()
                },
                "versions": {
                    "python": platform.python_version(),
                    "torch": str(torch.__version__),
                    "numpy": np.__version__,
                },
                **(provenance or {}),
            },
            measurements=gather([outcome.part for outcome in self.outcomes]),
        )


class _Trial:
    """Rows of an audit; where it breaks off, reasons fill the missing rows and ``fault`` says why.

    It is no caller of the audit, so a traceback leads from the run straight to the measurement.
    """

    def __init__(self, audit: Audit[Any], subject: Subject) -> None:
        self.audit, self.subject = audit, subject
        self.rows: list[Measurement] = []
        self.fault: str | None = None
        self.whole = self.again = True

    @contextmanager
    def filled(self, *, short: bool) -> Iterator[None]:
        """Fill the rows; repeat with less memory where memory was too short and can be reduced."""
        self.again = False
        try:
            with foreign():
                yield
        except NotApplicable as why:
            short = isinstance(why, TooFewRecords)
            self._fill("skipped", str(why), {TOO_FEW: True} if short else None)
        except TimeIsUp:
            self.whole = False
            self._fill("skipped", CUT_SHORT, {"left_out": True})
        except (UsageError, CheckpointError):
            raise
        except Exception as error:
            log.debug("%s failed", self.audit.name, exc_info=True)
            if short and short_of_memory(error):
                self.rows.clear()
                self.again = True
                return
            self.fault = str(error) if isinstance(error, GradauditError) else one_line(error)
        layers = [layer.name for layer in self.subject.layers]
        if self.fault is None and (faults := breaches(type(self.audit), self.rows, layers)):
            self.fault = "it yielded rows that its declaration does not allow: " + "; ".join(faults)
            self.rows[:] = {row.key: row for row in self.rows}.values()
        if self.fault is not None:
            self._fill("failed", self.fault)

    def _fill(
        self, status: Status, reason: str, details: Mapping[str, JsonValue] | None = None
    ) -> None:
        self.rows += _instead(self.audit, self.subject, self.rows, status, reason, details)


def left_out(audit: Audit[Any], subject: Subject, reason: str) -> Outcome:
    """Returns the outcome of an audit that was not run, though it may apply."""
    rows = _instead(audit, subject, (), "skipped", reason, {"left_out": True})
    return Outcome(AuditRows.of(audit, with_setting(rows, audit, subject)), 0.0, whole=False)


def passed_over(audit: Audit[Any], subject: Subject, reason: str) -> Outcome:
    """Returns the outcome of an audit that does not apply to the request."""
    rows = _instead(audit, subject, (), "skipped", reason, None)
    return Outcome(AuditRows.of(audit, with_setting(rows, audit, subject)), 0.0)


def of_sample(outcome: Outcome, subject: Subject, reason: str) -> Outcome:
    """The outcome of a sample of the subject's layers, with rows that say why others have none.

    Rows of the whole model are no numbers of all layers: they are left out too. Where nothing
    applied to the sample, the same is said of all.
    """
    audit, rows = outcome.part.audit, list(outcome.part.rows)
    details: dict[str, JsonValue] | None = {"left_out": True}
    status: Status = "skipped"
    if rows and not outcome.measured and outcome.whole:
        status, reason, details = rows[0].status, rows[0].reason or reason, None
    kept = [row for row in rows if row.layer is not None]
    others = _instead(audit, subject, kept, status, reason, details)
    rows = [*kept, *with_effort(with_setting(others, audit, subject), audit)]
    return replace(outcome, part=AuditRows.of(audit, rows))


def _instead(
    audit: Audit[Any],
    subject: Subject,
    rows: Sequence[Measurement],
    status: Status,
    reason: str,
    details: Mapping[str, JsonValue] | None,
) -> list[Measurement]:
    """Returns rows with a reason in place of missing headlines."""
    done = {(row.metric, row.layer) for row in rows if not row.variant}
    names = [layer.name for layer in subject.layers]
    made = Rows(type(audit))
    return [
        row
        for metric in audit.metrics
        for row in made.unmeasured(
            status, reason, [metric.id], names if metric.per_layer else [None], details
        )
        if (row.metric, row.layer) not in done
    ]


def _described(subject: Subject) -> JsonValue:
    """Returns the federation's file as the user wrote it."""
    if subject.deployment is None:
        return None
    return subject.deployment.model_dump(mode="json", by_alias=True, exclude_none=True)


def _left_aside(subject: Subject) -> dict[str, JsonValue]:
    """Name the shared layers that --layer leaves aside."""
    seen = {*(layer.name for layer in subject.layers), *subject.hidden}
    aside: list[JsonValue] = [x.name for x in subject.target.layers if x.name not in seen]
    return {"left_aside": aside} if aside else {}


def _notes(subject: Subject) -> dict[str, JsonValue]:
    """Notes what was removed from the model or switched off for the audit; empty without any."""
    off = "gradient checkpointing is off while audited: gradients are the same"
    model = subject.target.model
    notes = [*subject.target.notes, *([off] if recomputes(model) else [])]
    return {"model_notes": [*notes]} if notes else {}


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
