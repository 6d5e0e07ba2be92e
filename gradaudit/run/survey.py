"""A scan: runs audits as exactly as the time allows, with a report at any moment."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from pydantic import JsonValue

from gradaudit.audits import Audit
from gradaudit.audits.sizes import Size
from gradaudit.errors import AuditError
from gradaudit.executors.stopping import Stopped, reporting
from gradaudit.executors.units import NOTHING_KEPT, Units
from gradaudit.executors.workers import COSTS
from gradaudit.progress import Advance, Progress
from gradaudit.report import Report, estimate
from gradaudit.run.fingerprint import fingerprint
from gradaudit.run.pace import Pace
from gradaudit.run.parallel import (
    AuditProgress,
    Subjects,
    looks_at_all,
    sampled,
    side_by_side,
    workers_of,
)
from gradaudit.run.runner import Outcome, Run, left_out, measured, of_sample, passed_over
from gradaudit.run.schedule import Schedule, ScheduledRun, in_turn
from gradaudit.subject import Subject

SAMPLE_ALONE = "there was time for a sample of the layers alone (a longer --budget runs all)"
NO_TIME = "there was no time for it (a longer --budget runs it)"
STOPPED = "the command was interrupted before it was done"
NOT_READING = "it needs the clients' data, and this scan reads a captured update alone"

REPORTING = 0.0045
"""Seconds that a layer adds to making the report, its JSON and its table: 4.4 for 1,000 layers."""
_USUAL_BUDGET = 60.0
"""Budget in seconds below which the accuracy is measured on proportionally fewer records."""
Clock = Callable[[], float | None]
"""Function that returns the seconds left; None without a limit."""


class Survey:
    """The audits of a scan and their outcomes so far.

    Args:
        subject: what is audited.
        ladders: the sizes of each audit, in the report's order.
        left: the time.
        others: audits that are not run because they cannot read a captured update.

    Raises:
        AuditError: the model cannot be run on the records.
    """

    def __init__(
        self,
        subject: Subject,
        ladders: Sequence[Sequence[Size]],
        left: Clock,
        others: Sequence[Audit[Any]] = (),
    ) -> None:
        self.stopped: BaseException | None = None
        """What interrupted it."""
        self._subject, self._clock = subject, left
        self._subjects = _in_precisions(subject)
        self._names = [sizes[0].audit.name for sizes in ladders]
        self._others = {audit.name: audit for audit in others}
        self._run: Run | None = None
        self._found: dict[str, tuple[Size, Outcome]] = {}
        self._pace, self._expected = Pace.of(subject), dict[Size, float]()
        self.apart = [[size for size in sizes if self._is_apart(size)] for sizes in ladders]
        """The sizes of each audit that differ on this model, the most exact last."""
        self._ladders = in_turn(self.apart, self.seconds)
        self._begun, self._before = left(), 0.0
        """Seconds that were left at first, and those that an interrupted run had taken."""
        self._journal, self._turns = NOTHING_KEPT, 0

    def _left(self) -> float | None:
        """Seconds that are left for audits, before the report is made and shown."""
        left, layers = self._clock(), len(self._subject.layers)
        spared = self._before + self._pace.slowdown * REPORTING * layers
        return None if left is None else left - spared

    def _is_apart(self, size: Size) -> bool:
        """Whether a size looks at fewer than all layers of this model."""
        return size.layers is None or not looks_at_all(size, self._subject.layers)

    def seconds(self, size: Size) -> float:
        """Estimates the seconds of a size; zero where there is nothing to do."""
        if size not in self._expected:
            subject = sampled(self._subjects, size)
            self._expected[size] = self._pace.seconds(size.audit, subject)
        return self._expected[size]

    def go(
        self, progress: Progress, units: Units = NOTHING_KEPT, budget: float | None = None
    ) -> None:
        """Run audits until all are as exact as asked, the time is up, or the scan is stopped.

        Args:
            progress: shows how far the work is, and the outcome of each audit in a line.
            units: folder of finished work; an interrupted scan with the same budget goes on with
                its pace, its sizes and the time that it had left.
            budget: seconds that the scan had in all.
        """
        short = min(1.0, (budget or _USUAL_BUDGET) / _USUAL_BUDGET)
        self._run = Run.begun(self._subject, short)
        schedule = self._resumed(units, budget)
        expected = sum(seconds or 0.0 for _, seconds in self.plan())
        with progress.task("scan, expected seconds", max(1, round(expected))) as advance:
            try:
                with reporting():
                    self._side_by_side(schedule, progress, advance, units)
                    while turn := schedule.next():
                        share = AuditProgress(progress, advance, self.seconds(turn.size))
                        outcome = self._measured(turn, share, units)
                        self._done(schedule, turn, outcome, share)
            except (KeyboardInterrupt, Stopped) as stop:
                self.stopped = stop

    def _resumed(self, units: Units, budget: float | None) -> Schedule:
        """Returns the schedule, in which turns of an interrupted scan are marked as done."""
        if units:
            keys = sorted(fingerprint(self._subject, sizes[-1].audit) for sizes in self.apart)
            self._journal = units.of("scan", repr(budget), *keys)
            self._pace = self._journal.of("pace").once(lambda: self._pace)
            self._expected.clear()
            self._ladders = in_turn(self.apart, self.seconds)
        schedule = Schedule(self._ladders, self.seconds, self._left)
        while kept := self._journal.of("turn", self._turns).kept():
            place, name, outcome, self._before = kept
            size = next(size for size in self._ladders[place] if size.name == name)
            turn = ScheduledRun(place, size, None)
            schedule.done(turn, outcome.seconds, whole=outcome.whole, measured=outcome.measured)
            self._accept(size, outcome)
            self._turns += 1
        return schedule

    def _side_by_side(
        self, schedule: Schedule, progress: Progress, advance: Advance, units: Units
    ) -> None:
        """Run whole audits in workers where there is time for all; others follow one by one."""
        workers = workers_of(self._subject)
        turns = schedule.together(workers, self._pace.slowdown * COSTS)

        def done(turn: ScheduledRun, outcome: Outcome) -> None:
            share = AuditProgress(progress, advance, self.seconds(turn.size))
            self._done(schedule, turn, outcome, share)

        if turns:
            with suppress(AuditError):  # workers were lost: what they did not do has its turn
                side_by_side(self._subjects, turns, workers, units, done)

    def _done(
        self, schedule: Schedule, turn: ScheduledRun, outcome: Outcome, share: AuditProgress
    ) -> None:
        schedule.done(turn, outcome.seconds, whole=outcome.whole, measured=outcome.measured)
        share.finish()
        self._accept(turn.size, outcome)
        spent = self._before + (self._begun or 0.0) - (self._clock() or 0.0)
        self._journal.of("turn", self._turns).keep((turn.place, turn.size.name, outcome, spent))
        self._turns += 1
        share.say(f"{turn.size.audit.name}: {_words(turn.size, outcome)}")

    def plan(self) -> Iterator[tuple[Size, float | None]]:
        """Returns the audits that would run, in order, with the estimated time of each.

        The time is None where there is no time for the audit.
        """
        begun, spent = self._left(), 0.0
        schedule = Schedule(self._ladders, self.seconds, lambda: begun and begun - spent)
        sizes, seconds = {}, dict.fromkeys(range(len(self._ladders)), 0.0)
        while turn := schedule.next():
            took = self.seconds(turn.size)
            schedule.done(turn, took, whole=True)
            spent += took
            sizes[turn.place] = turn.size
            seconds[turn.place] += took
        for place, ladder in enumerate(self._ladders):
            yield (sizes[place], seconds[place]) if place in sizes else (ladder[0], None)

    def report(self, provenance: Mapping[str, JsonValue]) -> Report:
        """Returns the report of the finished audits, with further facts in its provenance."""
        assert self._run is not None  # there is nothing to report before it goes
        reason = STOPPED if self.stopped else NO_TIME
        outcomes = {
            sizes[0].audit.name: left_out(sizes[-1].audit, self._subject, reason)
            for sizes in self._ladders
            if sizes[0].audit.name not in self._found
        }
        outcomes |= {name: outcome for name, (_, outcome) in self._found.items()}
        outcomes |= {
            name: passed_over(audit, self._subject, NOT_READING)
            for name, audit in self._others.items()
        }
        run = replace(
            self._run, outcomes=[outcomes[name] for name in (*self._names, *self._others)]
        )
        return run.report({**provenance, "plan": self._facts()})

    def _measured(self, turn: ScheduledRun, progress: Progress, units: Units) -> Outcome:
        subject = sampled(self._subjects, turn.size)
        outcome = measured(subject, turn.size.audit, progress, units, turn.seconds)
        whole = looks_at_all(turn.size, self._subject.layers)
        return outcome if whole else of_sample(outcome, self._subject, SAMPLE_ALONE)

    def _facts(self) -> dict[str, JsonValue]:
        """Returns the sizes at which audits were made, and which were cut short or left out."""
        largest = {sizes[0].audit.name: sizes[-1].name for sizes in self._ladders}
        return {
            "sizes": {name: size.name for name, (size, _) in self._found.items()},
            "rougher": [
                name
                for name, (size, outcome) in self._found.items()
                if size.name != largest[name] and outcome.whole and outcome.measured
            ],
            "cut_short": [name for name, (_, outcome) in self._found.items() if not outcome.whole],
            "left_out": [name for name in self._names if name not in self._found],
            "interrupted": self.stopped is not None,
        }

    def _accept(self, size: Size, outcome: Outcome) -> None:
        """Keep an outcome unless a better one of the same audit is already kept.

        The fault of an audit that broke off is kept in either case.
        """
        name = size.audit.name
        if name in self._found:
            former_size, former = self._found[name]
            seconds = former.seconds + outcome.seconds
            if _worth(outcome) < _worth(former):
                fault = former.fault or outcome.fault
                size, outcome = former_size, replace(former, fault=fault)
            outcome = replace(outcome, seconds=seconds)
        self._found[name] = size, outcome


def _in_precisions(subject: Subject) -> Subjects:
    """Returns the subject in single precision and in its own, shared by all audits."""
    return {True: subject.in_precision(torch.float32), False: subject}


def _worth(outcome: Outcome) -> tuple[bool, bool]:
    """Ranks outcomes: complete ones before those cut short, and those without a fault first."""
    return outcome.whole, outcome.fault is None


def _words(size: Size, outcome: Outcome) -> str:
    """Summarises an outcome in a few words: the riskiest layer, or why there is none."""
    audit, rows = size.audit, outcome.part.rows
    measured_rows = [row for row in rows if row.number is not None and not row.variant]
    took = f"{outcome.seconds:.1f} s"
    if not measured_rows:
        return f"{rows[0].reason if rows else 'nothing'} ({took})"
    metric = next((m for m in audit.metrics if m.id in audit.headline), audit.metrics[0])
    of_metric = [row for row in measured_rows if row.metric == metric.id] or measured_rows
    sign = -1 if metric.riskier == "lower" else 1
    worst = max(of_metric, key=lambda row: sign * (row.number or 0.0))
    where = f" in {worst.layer}" if worst.layer else ""
    layers = len({row.layer for row in measured_rows if row.layer})
    return f"{worst.metric} {estimate(worst)}{where}" + (
        f", the riskiest of {layers} layers ({took})" if layers > 1 else f" ({took})"
    )
