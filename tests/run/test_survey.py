"""The plan of a scan, its order and hash, and what it reports when it is cut or taken up."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from dp_subject import subject
from fake_audit import Counting

from gradaudit.audits import Audit, Metric
from gradaudit.audits.gathering import incomplete
from gradaudit.audits.presets import Preset
from gradaudit.executors.stopping import Stopped
from gradaudit.progress import Progress, Silent
from gradaudit.report import Measurement, Report
from gradaudit.run.scan_plan import CORES, MOST, SHARE, in_order, plan_facts, planned
from gradaudit.run.survey import NO_TIME, STOPPED, TOO_MUCH, Survey
from gradaudit.subject import RATE

if TYPE_CHECKING:
    from gradaudit.subject import Subject

MINUTE = 60 * CORES * RATE


class Dear(Counting):
    """Takes as many operations as it scales by."""

    def gradients(self, subject: "Subject") -> float:
        return self.options.scale / subject.work(1.0)


def presets(*scales: float, kind: type[Counting] = Dear, **options: Any) -> list[Preset]:
    names = ("least", "quick", "plain", "thorough")
    pairs = zip(names, scales, strict=False)
    return [Preset(name, kind(kind.Options(scale=scale, **options))) for name, scale in pairs]


def everything(audit: Audit[Any], metric: Metric) -> bool:
    return True


def surveyed(*each: Sequence[Preset], seconds: float = 60, **more: Any) -> Survey:
    survey = Survey(subject(), each, seconds, everything, **more)
    survey.go(Silent())
    return survey


@pytest.mark.parametrize(
    ("work", "name", "fits"),
    [
        ((0.01, 0.1, SHARE * 0.99), "plain", True),
        ((0.01, 0.1, SHARE * 1.01), "quick", True),
        ((0.01, 0.2, 0.3), "least", True),
        ((MOST * 0.99, 0.8, 0.9), "least", True),
        ((MOST * 1.01, 0.8, 0.9), "least", False),
        ((1e-12, 1e-12, 1e-12), "plain", True),
    ],
)
def test_the_largest_preset_whose_work_fits_is_chosen(
    work: tuple[float, ...], name: str, fits: bool
) -> None:
    chosen = planned(subject(), presets(*(share * MINUTE for share in work)), 60)
    assert (chosen.preset.name, chosen.fits, chosen.asked) == (name, fits, name == "plain")


class OfAttribute(Counting):
    name: ClassVar[str] = "of attribute"
    priority: ClassVar[int] = 99
    metrics = (Metric(id="count", title="", question="attribute"),)


class Unjudged(OfAttribute):
    name: ClassVar[str] = "unjudged"
    priority: ClassVar[int] = 1


class Attack(Counting):
    name: ClassVar[str] = "attack"
    priority: ClassVar[int] = 98


class Proxy(Counting):
    name: ClassVar[str] = "proxy"
    priority: ClassVar[int] = 2
    proxy: ClassVar[bool] = True


class OfJob(Proxy):
    name: ClassVar[str] = "job"
    priority: ClassVar[int] = 200
    brings_model: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("asked", "order"),
    [
        (True, ["job", "of attribute", "attack", "unjudged", "proxy"]),
        (False, ["job", "attack", "of attribute", "unjudged", "proxy"]),
    ],
)
def test_a_job_and_what_is_judged_of_a_named_attribute_come_first_then_attacks(
    asked: bool, order: list[str]
) -> None:
    kinds: tuple[type[Counting], ...] = (Proxy, Unjudged, Attack, OfAttribute, OfJob)
    chosen = [planned(subject(), presets(1.0, kind=kind), 60) for kind in kinds]
    ordered = in_order(chosen, asked, lambda audit, metric: audit.name != "unjudged")
    assert [each.audit.name for each in ordered] == order


def test_a_plans_hash_follows_from_the_plan_alone() -> None:
    def digest(about: "Subject", scale: float = 1.0, **options: Any) -> object:
        chosen = [planned(about, presets(scale, **options), 60)]
        return plan_facts(about, chosen)["hash"]

    same = digest(subject())
    assert digest(replace(subject(), seed=9, jobs=2)) == same
    assert len({same, digest(subject(), 2.0), digest(subject(), doubled=False)}) == 3
    assert digest(replace(subject(), samples=7)) != same


def test_what_is_too_much_work_is_left_out_or_made_smaller_and_said() -> None:
    report = surveyed(presets(MINUTE), presets(1, MINUTE, kind=First)).report({})
    assert {row.reason for row in report.rows if row.audit == "counting"} == {TOO_MUCH}
    plan: Any = report.provenance["plan"]
    assert (plan["left_out"], plan["smaller"]) == (["counting"], ["first"])
    assert plan["audits"]["first"]["preset"] == "least"


def test_what_breaks_off_takes_no_number_away_and_is_told() -> None:
    survey = Survey(subject("sex"), [presets(0.1, kind=OfOne)], 60, everything, lambda: 90)
    survey.go(Silent())
    assert not incomplete(survey.report({}))


class OfOne(OfAttribute):
    """Its numbers are of the preset that it ran at last."""

    name: ClassVar[str] = "one"


class Late(OfOne):
    """Cannot be done before the deadline but at its least preset."""

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        if self.options.scale > 1:
            time.sleep(30)
        yield from super().run(subject, progress)


def test_a_named_attribute_has_a_row_where_the_deadline_cuts_its_preset() -> None:
    end = time.monotonic() + 0.5
    each = presets(1, 2, kind=Late)
    about = subject("sex")
    survey = Survey(about, [each], 60, everything, lambda: end - time.monotonic())
    survey.go(Silent())
    report = survey.report({})
    assert {row.value for row in report.select("one.count")} == {
        2.0 * layer.parameters for layer in about.layers
    }


def test_after_the_deadline_nothing_is_begun() -> None:
    report = surveyed(presets(1.0), left=lambda: -1.0).report({})
    assert {row.reason for row in report.rows} == {NO_TIME}


class First(Dear):
    """Is interrupted in some run."""

    name: ClassVar[str] = "first"
    runs: ClassVar[int] = 0
    stop: ClassVar[int] = -1

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        First.runs += 1
        if First.runs == First.stop:
            raise Stopped(signal.SIGINT)
        yield from super().run(subject, progress)


class Second(First):
    name = "attack second"


class Third(First):
    name = "attack third"


KINDS: tuple[type[Counting], ...] = (First, Second, Third)


def scanned(before: Report | None = None, stop: int = -1) -> tuple[Survey, Report]:
    First.runs, First.stop = 0, stop
    survey = Survey(subject(), [presets(1, kind=kind) for kind in KINDS], 60, everything)
    survey.go(Silent(), before)
    return survey, survey.report({}, resumable=survey.stopped is not None)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_scan_that_is_taken_up_is_the_one_that_was_not_interrupted(stop: int) -> None:
    _, whole = scanned()
    stopped, begun = scanned(stop=stop)
    assert stopped.stopped is not None
    assert begun.interrupted
    assert STOPPED in {row.reason for row in begun.rows}
    begun = Report.model_validate_json(begun.to_json())
    _, resumed = scanned(begun)
    assert First.runs == 3 - (stop - 1)
    assert resumed.measurements == whole.measurements
    assert resumed.provenance["plan"] == whole.provenance["plan"]


def test_finished_audits_of_another_subject_are_not_taken_up() -> None:
    _, begun = scanned(stop=3)
    First.runs, First.stop = 0, -1
    about = replace(subject(), seed=5)
    survey = Survey(about, [presets(1, kind=kind) for kind in KINDS], 60, everything)
    survey.go(Silent(), begun)
    assert First.runs == 3


def test_each_audit_that_is_done_is_shown() -> None:
    told: list[int] = []

    class Told(Silent):
        @contextmanager
        def task(self, description: str, total: int) -> Iterator[Any]:
            assert total == 3
            yield told.append

    survey = Survey(subject(), [presets(1, kind=kind) for kind in KINDS], 60, everything)
    survey.go(Told())
    assert told == [1, 1, 1]


class Where(Counting):
    """Measures which process it is in."""

    name: ClassVar[str] = "where"

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        for layer in subject.layers:
            yield Measurement(audit=self.name, metric="count", layer=layer.name, value=os.getpid())


class There(Where):
    name: ClassVar[str] = "there"


def processes(about: "Subject", *kinds: type[Counting]) -> set[float | None]:
    survey = Survey(about, [presets(1, kind=kind) for kind in kinds], 60, everything)
    survey.go(Silent())
    return {row.value for row in survey.report({}).measurements}


@pytest.mark.slow
@pytest.mark.processes
def test_workers_do_whole_audits() -> None:
    assert os.getpid() not in processes(replace(subject(), jobs=2), Where, There)


def test_what_several_processes_cannot_hold_or_get_is_audited_here() -> None:
    about = subject()
    assert processes(about, Where, There) == {os.getpid()}
    small = replace(about, jobs=2, memory=2 * about.records.inputs.nbytes)
    assert processes(small, Where, There) == {os.getpid()}
    about.target.model.lock = os.scandir(".")
    assert processes(replace(about, jobs=2), Where, There) == {os.getpid()}
