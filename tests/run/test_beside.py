"""Audits of a scan that workers do side by side: the same report, from other processes."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from dp_subject import subject
from fake_audit import Counting

from gradaudit.audits import AuditCost, audits
from gradaudit.audits.sizes import Size
from gradaudit.executors import workers
from gradaudit.executors.units import NOTHING_KEPT, Units
from gradaudit.progress import Progress, Silent
from gradaudit.report import Measurement, Report
from gradaudit.run.parallel import side_by_side
from gradaudit.run.runner import Outcome
from gradaudit.run.schedule import Schedule, ScheduledRun
from gradaudit.run.survey import Survey

if TYPE_CHECKING:
    from gradaudit.subject import Subject


class Where(Counting):
    """Measures which process it is in, and costs as many seconds as it scales by."""

    name: ClassVar[str] = "where"
    folder: ClassVar[Path | None] = None

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        for layer in subject.layers:
            yield Measurement(audit=self.name, metric="count", layer=layer.name, value=os.getpid())

    def cost(self, subject: "Subject") -> AuditCost:
        return AuditCost(passes=1e-9, seconds=self.options.scale)


class Second(Where):
    """Another one."""

    name: ClassVar[str] = "second"


class Third(Where):
    """Another one."""

    name: ClassVar[str] = "third"


KINDS = (Where, Second, Third)


def sized(seconds: float, kind: type[Where]) -> Size:
    return Size("plain", kind(kind.Options(scale=seconds)))


def processes(report: Report) -> dict[str, set[float | None]]:
    return {
        kind.name: {row.value for row in report.measurements if row.audit == kind.name}
        for kind in KINDS
    }


def surveyed(*seconds: float, left: float = 600, **settings: Any) -> Survey:
    sizes = [[sized(each, kind)] for each, kind in zip(seconds, KINDS, strict=True)]
    survey = Survey(replace(subject(), **settings), sizes, lambda: left)
    survey.go(Silent())
    return survey


@pytest.mark.parametrize(
    ("estimates", "left", "workers", "places"),
    [
        ((1, 3, 2), None, 2, [1, 2, 0]),
        ((1, 3, 2), 90, 2, [1, 2, 0]),
        ((1, 9, 2), 90, 2, [2, 0]),  # the second has its turn, and its units are shared out
        ((1, 3, 2), 90, 1, []),
        ((1, 3, 2), 12, 2, []),  # with caution there is no time for all
        ((0, 3, 0), 90, 2, []),
        ((0, 3, 3), 90, 2, [1, 2]),
        ((3, 3, 3), 90, 4, []),
    ],
)
def test_audits_go_to_workers_that_are_no_more_than_a_share_of_all(
    estimates: tuple[float, ...], left: float | None, workers: int, places: list[int]
) -> None:
    sizes = [[sized(1 + number, Where)] for number in range(len(estimates))]
    told = {size: float(each) for (size,), each in zip(sizes, estimates, strict=True)}
    schedule = Schedule(sizes, told.__getitem__, lambda: left)
    turns = schedule.together(workers)
    assert [turn.place for turn in turns] == places
    for turn in turns:
        schedule.done(turn, 1.0, whole=True)
    rest: list[ScheduledRun] = []
    while turn_left := schedule.next():
        rest.append(turn_left)
        schedule.done(turn_left, 1.0, whole=True)
    assert sorted(places + [turn.place for turn in rest]) == [0, 1, 2]


def test_workers_do_whole_audits_and_this_process_the_long_one() -> None:
    mixed = processes(surveyed(2, 2, 9, jobs=2).report({}))
    assert mixed["third"] == {os.getpid()}
    others = mixed["where"], mixed["second"]
    assert all(len(each) == 1 and os.getpid() not in each for each in others)


@pytest.mark.parametrize("kept", [False, True])
def test_the_report_is_the_same_and_what_is_kept_is_not_done_again(
    kept: bool, tmp_path: Path
) -> None:
    units = Units(tmp_path) if kept else NOTHING_KEPT
    names = ("forward", "sensitivity", "attack labels", "floor")
    found = []
    for jobs in (2, 1):
        sizes = [[Size("quick", kind(kind.Options(**each)))] for kind, each in _options(names)]
        about = replace(subject(), jobs=jobs, samples=24)
        survey = Survey(about, sizes, lambda: 600)
        survey.go(Silent(), units)
        found.append(survey.report({}))
    assert [row for row in found[0].measurements if row.status == "measured"]
    assert found[0].measurements == found[1].measurements
    assert found[0].provenance["plan"] == found[1].provenance["plan"]
    if kept:
        first, second = (report.provenance["seconds"] for report in found)
        for name in names[:-1]:  # the last one does not apply
            assert first[name] == second[name]


def _options(names: tuple[str, ...]) -> Iterator[tuple[Any, dict[str, Any]]]:
    for name in names:
        preset = {**audits()[name].quick}
        preset.pop("samples", None)
        preset.pop("single", None)
        yield audits()[name], preset


class Lost(Where):
    """Ends whatever process it is in but the one that started the tests."""

    name: ClassVar[str] = "where"

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        if os.getpid() != int(self.options.scale):
            os._exit(1)
        yield from super().run(subject, progress)

    def cost(self, subject: "Subject") -> AuditCost:
        return AuditCost(passes=1e-9, seconds=2)


def test_an_audit_that_is_lost_with_its_workers_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "TRIES", 1)
    lost = Size("plain", Lost(Lost.Options(scale=os.getpid())))
    survey = Survey(
        replace(subject(), jobs=2), [[lost], [sized(2, Second)], [sized(2, Third)]], lambda: 90
    )
    survey.go(Silent())
    found = processes(survey.report({}))
    assert found["where"] == {os.getpid()}
    assert all(found.values())


class Slow(Where):
    """Takes a second."""

    name: ClassVar[str] = "second"

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        time.sleep(1)
        yield from super().run(subject, progress)


def test_an_audit_that_waits_for_a_worker_has_what_time_is_left() -> None:
    """Two take a second; of those that wait for a worker one has no time left."""
    kinds, limits = (Slow, Slow, Third, Third, Third), (None, None, None, 0.5, 60.0)
    turns = [
        ScheduledRun(place, sized(1, kind), seconds)
        for place, (kind, seconds) in enumerate(zip(kinds, limits, strict=True))
    ]
    about = replace(subject(), jobs=2)
    done: dict[int, Outcome] = {}
    subjects = {False: about, True: about}
    side_by_side(subjects, turns, 2, NOTHING_KEPT, lambda turn, it: done.update({turn.place: it}))
    assert sorted(done) == [0, 1, 2, 4]
    assert all(outcome.whole for outcome in done.values())


class Interrupting(Where):
    """Is what the user interrupts, when others are done."""

    name: ClassVar[str] = "where"

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        time.sleep(1)
        raise KeyboardInterrupt
        yield

    def cost(self, subject: "Subject") -> AuditCost:
        return AuditCost(passes=1e-9, seconds=self.options.scale)


def test_what_is_done_when_it_is_interrupted_is_reported() -> None:
    interrupting = Size("plain", Interrupting(Interrupting.Options(scale=1)))
    others = [[sized(3, Second)], [sized(3, Third)]]
    survey = Survey(replace(subject(), jobs=2), [[interrupting], *others], lambda: 600)
    survey.go(Silent())
    assert isinstance(survey.stopped, KeyboardInterrupt)
    report = survey.report({})
    assert report.provenance["plan"]["left_out"] == ["where"]
    found = processes(report)
    assert found["where"] == {None}
    assert os.getpid() not in found["second"] | found["third"]


def test_what_several_processes_cannot_hold_is_audited_here() -> None:
    bytes_of_records = subject().records.inputs.nbytes
    for settings in ({"jobs": 1}, {"jobs": 2, "memory": 2 * bytes_of_records}):
        found = processes(surveyed(2, 2, 2, **settings).report({}))
        assert found == {kind.name: {os.getpid()} for kind in KINDS}


def test_a_model_that_cannot_be_shipped_is_audited_here() -> None:
    about = subject()
    about.target.model.lock = os.scandir(".")
    survey = Survey(replace(about, jobs=2), [[sized(2, kind)] for kind in KINDS], lambda: 90)
    survey.go(Silent())
    assert processes(survey.report({})) == {kind.name: {os.getpid()} for kind in KINDS}
