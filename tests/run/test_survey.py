"""What a scan reports of audits that were run at several sizes."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from dp_subject import subject
from fake_audit import Counting, Trouble

from gradaudit.audits import AuditCost
from gradaudit.audits.gathering import incomplete
from gradaudit.audits.sizes import Size, SizeName
from gradaudit.executors.stopping import Stopped
from gradaudit.executors.units import NOTHING_KEPT, Units
from gradaudit.progress import Progress, Silent
from gradaudit.report import Measurement, Report
from gradaudit.run.pace import Pace, Passes
from gradaudit.run.survey import Survey

if TYPE_CHECKING:
    from gradaudit.subject import Subject


NAMES: tuple[SizeName, ...] = ("least", "quick")


class Dear(Counting):
    """Costs as many seconds as it scales by."""

    def cost(self, subject: "Subject") -> AuditCost:
        return AuditCost(passes=1e-9, seconds=self.options.scale)


def test_a_larger_size_that_breaks_off_takes_no_number_away_and_is_told() -> None:
    rough, exact = Dear.Options(scale=0.1), Dear.Options(scale=100, trouble="crash")
    sizes = [Size("least", Dear(rough)), Size("quick", Dear(exact))]
    survey = Survey(subject(), [sizes], lambda: 90)
    survey.go(Silent())
    report = survey.report({})
    assert {row.status for row in report.measurements} == {"measured"}
    assert report.provenance["plan"]["sizes"] == {"counting": "least"}
    assert "counting failed: RuntimeError" in (incomplete(report) or "")


@pytest.mark.parametrize(
    ("trouble", "plan"),
    [
        ("no", {"rougher": ["counting"], "cut_short": []}),
        ("sleep", {"rougher": [], "cut_short": ["counting"]}),
        ("nothing", {"rougher": [], "cut_short": []}),
    ],
)
def test_what_was_cut_short_or_did_not_apply_is_not_called_rough(
    trouble: Trouble, plan: dict[str, list[str]]
) -> None:
    ladder = [Dear.Options(scale=scale, trouble=trouble) for scale in (0.01, 100)]
    sizes = [Size(name, Dear(options)) for name, options in zip(NAMES, ladder, strict=True)]
    survey = Survey(subject(), [sizes], lambda: 0.2)
    survey.go(Silent())
    told = survey.report({}).provenance["plan"]
    assert {name: told[name] for name in plan} == plan


class Timed(Dear):
    """Takes as many seconds of a clock as it scales by, and is interrupted in some run."""

    now: ClassVar[float] = 0
    runs: ClassVar[int] = 0
    stop: ClassVar[int] = -1

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        Timed.runs += 1
        if Timed.runs == Timed.stop:
            raise Stopped(signal.SIGINT)
        Timed.now += self.options.scale
        yield from super().run(subject, progress)


class First(Timed):
    name = "first"


class Second(Timed):
    name = "second"


class Third(Timed):
    name = "third"


def scanned(units: Units, stop: int = -1) -> Report:
    """A scan of 100 seconds by the clock of the audits."""
    Timed.now, Timed.runs, Timed.stop = 0, 0, stop
    ladders = [
        [Size(n, kind(kind.Options(scale=s))) for n, s in zip(NAMES, (1, 60), strict=True)]
        for kind in (First, Second, Third)
    ]
    survey = Survey(subject(), ladders, lambda: 100 - Timed.now)
    survey.go(Silent(), units, 100)
    return survey.report({})


def test_a_scan_that_is_resumed_is_the_one_that_was_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes follow from the time that was left, of which the interrupted run had its part.

    The pace is always the same: measured, it would follow what else the machine does.
    """
    passes = Passes(alone=1e-6, together=1e-6)
    monkeypatch.setattr(Pace, "of", lambda subject: Pace(passes, passes))
    whole = scanned(NOTHING_KEPT)
    count = Timed.runs
    assert len(set(whole.provenance["plan"]["sizes"].values())) == 2
    for stop in range(1, count + 1):
        units = Units(tmp_path / str(stop))
        (tmp_path / str(stop)).mkdir()
        assert scanned(units, stop).provenance["plan"]["interrupted"]
        resumed = scanned(units)
        assert Timed.runs == count - stop + 1
        assert resumed.measurements == whole.measurements
        assert resumed.provenance["plan"] == whole.provenance["plan"]
