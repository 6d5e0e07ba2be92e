"""A scan: runs its plan's audits in their order, with a report at any moment."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import JsonValue

from gradaudit.accuracy import FEWEST_RECORDS
from gradaudit.audits import Audit
from gradaudit.audits.gathering import AuditRows, rows_of
from gradaudit.audits.presets import Preset
from gradaudit.errors import AuditError
from gradaudit.executors.stopping import Stopped, reporting
from gradaudit.measurement import dict_of
from gradaudit.progress import Progress
from gradaudit.report import Report, estimate
from gradaudit.run.fingerprint import fingerprint, identity
from gradaudit.run.parallel import side_by_side, workers_of
from gradaudit.run.runner import Outcome, Run, left_out, measured, of_sample, passed_over
from gradaudit.run.scan_plan import (
    Judged,
    PlannedAudit,
    at_preset,
    in_order,
    is_sampled,
    plan_facts,
    planned,
)
from gradaudit.subject import Subject

SAMPLE_ALONE = "this preset measures a sample of the layers of so large a model"
TOO_MUCH = "it is too much work for this preset (a larger preset or --budget runs it)"
NO_TIME = "the deadline came before it (a longer --budget runs it)"
NOT_REACHED = "the command ended before it"
STOPPED = "the command was interrupted before it was done"
NOT_READING = "it needs the clients' data, and this scan reads a captured update alone"

REPORTING = 0.0045
"""Seconds that a layer adds to making the report, its JSON and its table: 4.4 for 1,000 layers."""
_FULL = 60.0
"""Seconds below which a scan measures the accuracy on proportionally fewer records."""
_LEAST = 5.0
"""Seconds that the audit of a named attribute has at its least preset, whatever the deadline."""
_EVERY = 5.0
"""Seconds between two times that the unfinished report is kept."""


def expect_runnable(subject: Subject) -> None:
    """Run the model on a few records, as a scan does on all of them.

    Raises:
        AuditError: the model cannot be run on the records.
    """
    few = np.arange(min(FEWEST_RECORDS, len(subject.records)))
    Run.begun(replace(subject, records=subject.records.take(few)))


class Survey:
    """The plan of a scan, and the outcomes of its audits so far.

    Args:
        subject: what is audited.
        presets: of each audit, from the least work to the most, in the report's order.
        seconds: that all audits are made for.
        judged: whether the policy judges a metric.
        left: clock of the seconds until the deadline; None without one.
        share: largest share of the work for one audit.
        others: audits that are not run because they cannot read a captured update.

    Raises:
        AuditError: the model cannot be run on the records.
    """

    def __init__(
        self,
        subject: Subject,
        presets: Sequence[Sequence[Preset]],
        seconds: float,
        judged: Judged,
        left: Callable[[], float] | None = None,
        *,
        share: float | None = None,
        others: Sequence[Audit[Any]] = (),
    ) -> None:
        self.stopped: BaseException | None = None
        """What interrupted it."""
        self._subject, self._clock, self._seconds = subject, left, seconds
        self._names = [each[0].audit.name for each in presets]
        self._others = others
        self._run: Run | None = None
        self._found: dict[str, Outcome] = {}
        self._done = set[str]()
        chosen = [planned(subject, each, seconds, share) for each in presets]
        self.plan = in_order(chosen, bool(subject.attributes), judged)
        """The audits in the order in which they run."""
        self._first = self._named_first(presets, judged) if left else None

    def _named_first(
        self, presets: Sequence[Sequence[Preset]], judged: Judged
    ) -> PlannedAudit | None:
        """The first audit of a named attribute, at its least preset."""
        first = self.plan[0] if self.plan and self._subject.attributes else None
        questions = {m.question for m in first.audit.metrics} if first else set()
        if first is None or "attribute" not in questions:
            return None
        least = next(each[0] for each in presets if each[0].audit.name == first.audit.name)
        return PlannedAudit(least, 0.0, asked=False) if least is not first.preset else None

    def _left(self) -> float | None:
        """Seconds that are left for audits, before the report is made and shown."""
        spared = REPORTING * len(self._subject.layers)
        return None if self._clock is None else self._clock() - spared

    def go(
        self,
        progress: Progress,
        before: Report | None = None,
        keep: Callable[[Report], None] | None = None,
    ) -> None:
        """Run the audits until all are done, the deadline comes, or the scan is stopped.

        Args:
            progress: shows the number of audits done, and the outcome of each in a line.
            before: report of an interrupted scan, whose finished audits are taken up.
            keep: called from time to time with the unfinished report.
        """
        short = min(1.0, self._seconds / _FULL) if self._clock else 1.0
        self._run = Run.begun(self._subject, short)
        if before is not None:
            self._found.update(self._taken_up(before))
            self._done.update(self._found)
        kept = time.monotonic()
        waiting = [each for each in self.plan if each.fits and self._open(each)]
        with progress.task("scan, audits", len(waiting)) as advance:

            def accepted(each: PlannedAudit, outcome: Outcome) -> None:
                nonlocal kept
                self._accept(each, outcome)
                progress.say(f"{each.audit.name}: {_words(outcome)}")
                advance(int(each is not self._first))
                if keep and time.monotonic() > kept + _EVERY:
                    keep(self.report({}, resumable=True))
                    kept = time.monotonic()

            try:
                with reporting():
                    self._go(waiting, progress, accepted)
            except (KeyboardInterrupt, Stopped) as stop:
                self.stopped = stop

    def _go(
        self,
        waiting: Sequence[PlannedAudit],
        progress: Progress,
        accepted: Callable[[PlannedAudit, Outcome], None],
    ) -> None:
        """Run what is not done yet: in workers where they can hold it, else one by one."""
        if self._first and self._first.audit.name not in self._found:
            left = self._left()
            left = None if left is None else max(left, _LEAST)
            accepted(self._first, self._measured(self._first, progress, left))
        workers = min(workers_of(self._subject), len(waiting))
        if workers > 1:
            with suppress(AuditError):  # workers were lost: what they did not do is done here
                side_by_side(self._subject, waiting, workers, self._left(), accepted)
        for each in waiting:
            left = self._left()
            if self._open(each) and (left is None or left > 0):
                accepted(each, self._measured(each, progress, left))

    def _open(self, each: PlannedAudit) -> bool:
        """Whether an audit was not tried yet at the preset of its plan."""
        return each.audit.name not in self._done

    def _measured(self, each: PlannedAudit, progress: Progress, left: float | None) -> Outcome:
        return measured(at_preset(self._subject, each.preset), each.audit, progress, seconds=left)

    def _accept(self, each: PlannedAudit, outcome: Outcome) -> None:
        """Keep an outcome, unless it was cut short or broke off and a whole one is kept."""
        if is_sampled(self._subject, each.preset):
            outcome = of_sample(outcome, self._subject, SAMPLE_ALONE)
        if each is not self._first:
            self._done.add(each.audit.name)
        former = self._found.get(each.audit.name)
        if former and _worth(outcome) < _worth(former):
            fault = former.fault or outcome.fault
            outcome = replace(former, fault=fault)
        self._found[each.audit.name] = outcome

    def _taken_up(self, before: Report) -> Iterator[tuple[str, Outcome]]:
        """Yields the outcomes of audits that an interrupted scan finished on the same subject."""
        finished = dict_of(dict_of(before.provenance.get("plan")).get("finished"))
        took = dict_of(before.provenance.get("seconds"))
        for each in self.plan:
            name = each.audit.name
            if finished.get(name) == self._fingerprint(each):
                part = AuditRows.of(each.audit, rows_of(before, each.audit))
                seconds = took.get(name)
                yield name, Outcome(part, seconds if isinstance(seconds, float) else 0.0)

    def _fingerprint(self, each: PlannedAudit) -> str:
        return fingerprint(self._identity, at_preset(self._subject, each.preset), each.audit)

    @cached_property
    def _identity(self) -> str:
        return identity(self._subject)

    def report(self, provenance: Mapping[str, JsonValue], *, resumable: bool = False) -> Report:
        """Returns the report of the finished audits.

        Args:
            provenance: further facts.
            resumable: whether the finished audits are named, so that a scan can take them up.
        """
        assert self._run is not None  # there is nothing to report before it goes
        outcomes = {
            each.audit.name: self._found.get(each.audit.name)
            or left_out(each.audit, self._subject, self._why(each, resumable))
            for each in self.plan
        }
        run = replace(
            self._run,
            outcomes=[
                *(outcomes[name] for name in self._names),
                *(passed_over(audit, self._subject, NOT_READING) for audit in self._others),
            ],
        )
        interrupted = resumable or self.stopped is not None
        facts: dict[str, JsonValue] = {**self._facts(), "interrupted": interrupted}
        if resumable:
            facts["finished"] = {
                each.audit.name: self._fingerprint(each)
                for each in self.plan
                if self._is_finished(each)
            }
        return run.report({**provenance, "plan": facts})

    def _is_finished(self, each: PlannedAudit) -> bool:
        known = self._found.get(each.audit.name)
        return known is not None and not self._open(each) and known.whole and not known.fault

    def _why(self, each: PlannedAudit, resumable: bool) -> str:
        if not each.fits:
            return TOO_MUCH
        return STOPPED if self.stopped else NOT_REACHED if resumable else NO_TIME

    def _facts(self) -> dict[str, JsonValue]:
        """Returns the plan with its hash, and which audits were made smaller, cut or left out."""
        smaller = [x.audit.name for x in self.plan if not x.asked and x.work and self._numbers(x)]
        cut = [name for name, outcome in self._found.items() if not outcome.whole]
        return {
            **plan_facts(self._subject, self.plan),
            "smaller": [name for name in smaller if name not in cut],
            "cut_short": [*cut],
            "left_out": [name for name in self._names if name not in self._found],
        }

    def _numbers(self, each: PlannedAudit) -> bool:
        known = self._found.get(each.audit.name)
        return known is not None and known.measured


def _worth(outcome: Outcome) -> tuple[bool, bool]:
    """Ranks outcomes: complete ones before those cut short, and those without a fault first."""
    return outcome.whole, outcome.fault is None


def _words(outcome: Outcome) -> str:
    """Summarises an outcome in a few words: the riskiest layer, or why there is none."""
    audit, rows = outcome.part.audit, outcome.part.rows
    measured_rows = [row for row in rows if row.number is not None and not row.variant]
    took = f"{outcome.seconds:.1f} s"
    if not measured_rows:
        return f"{rows[0].reason if rows else 'nothing'} ({took})"
    metric = next((m for m in audit.metrics if m.id in audit.headline), None)
    if metric is None:
        return f"{len(measured_rows)} numbers ({took})"
    of_metric = [row for row in measured_rows if row.metric == metric.id] or measured_rows
    sign = -1 if metric.riskier == "lower" else 1
    worst = max(of_metric, key=lambda row: sign * (row.number or 0.0))
    where = f" in {worst.layer}" if worst.layer else ""
    layers = len({row.layer for row in measured_rows if row.layer})
    return f"{worst.metric} {estimate(worst)}{where}" + (
        f", the riskiest of {layers} layers ({took})" if layers > 1 else f" ({took})"
    )
