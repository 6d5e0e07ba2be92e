"""Histories: the order of reports, which changes are flagged, and what is written."""

import csv
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from report_builder import make_report, row

from gradaudit.evidence.history import BY_LUCK, History, read_history
from gradaudit.judging import gate

pytestmark = pytest.mark.usefixtures("two_audits")

M = "leak.bits"


def reports(folder: Path, *values: float, half: float = 0.5) -> Path:
    """A folder with a report of each value of a layer, and others that never change."""
    for number, value in enumerate(values, start=1):
        ends = (value - half, value + half)
        report = make_report(
            row(M, "fc1", value, interval=ends),
            row(M, "fc2", 1 + 5 * number, details={"warning": "no interval"}),
            row("leak.note", "fc1", value, interval=ends),
        )
        report.save(folder / f"round-{number}.json")
    return folder


def flagged(folder: Path) -> list[tuple[str, str, str | None]]:
    found = read_history(folder).turns
    return [(turn.before, turn.after, turn.change.direction) for turn in found]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 1.2, 0.9), []),
        ((1, 3), [("round-1", "round-2", "worse")]),
        ((3, 1, 3), [("round-2", "round-3", "worse"), ("round-1", "round-2", "better")]),
        ((1, 1.6, 2.2, 2.8), [("round-1", "round-3", "worse")]),
    ],
)
def test_only_what_the_intervals_show_is_flagged_a_drift_too(
    values: tuple[float, ...], expected: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    assert flagged(reports(tmp_path, *values)) == expected


def test_reports_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = reports(tmp_path, *range(1, 12))
    (folder / "statement.json").write_text("{}")
    (folder / "²1.json").write_text("{}")
    history = read_history(folder)
    assert list(history.reports) == [f"round-{number}" for number in range(1, 12)]
    assert [row.variant["report"] for row in history.merged().rows[::3]] == list(range(1, 12))


@pytest.mark.slow
def test_luck_flags_as_many_comparisons_as_is_said() -> None:
    """Of 3,000 layers whose number never changes, in three reports."""
    drawn = np.random.default_rng(0).normal(size=(3, 3000))
    layers = [(f"fc{i}", "Linear", 1) for i in range(3000)]
    made = {
        f"r{number}": make_report(
            *(
                row(M, name, float(x), interval=(float(x) - 1.96, float(x) + 1.96))
                for (name, _, _), x in zip(layers, values, strict=True)
            ),
            layers=layers,
        )
        for number, values in enumerate(drawn)
    }
    history = History(made)
    expected = BY_LUCK * 6000
    assert abs(len(history.turns) - expected) < 4 * np.sqrt(expected)
    assert f"about {expected:.1f} of 6000 comparisons" in history.summary


@pytest.mark.slow
def test_the_command_prints_and_writes_it(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    reports(folder, *([1, 5] * 8))
    outputs = ["-o", tmp_path / "page.html", "-o", tmp_path / "rows.csv"]
    done = run("history", folder, *outputs, width=1000)
    lines = done.out.splitlines()
    assert done.status == 0, done.err
    assert lines[0].startswith(
        "16 reports from round-1 to round-16: intervals show 8 changes for the worse and 7 for"
    )
    assert (
        lines[1] == "fc1 leak.bits: worse from round-1 to round-2, 1 [0.500, 1.50] → 5 [4.50, 5.50]"
    )
    assert (len(lines), lines[-1]) == (12, "5 more changes (--all shows them)")
    assert len(run("history", folder, "--all", width=1000).out.splitlines()) == 16
    with (tmp_path / "rows.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 16 * 3
    assert {key: rows[0][key] for key in ("report", "layer", "metric", "low", "high")} == {
        **{"report": "1", "layer": "fc1", "metric": M},
        **{"low": "0.5", "high": "1.5"},
    }
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 1
    assert "default-src 'none'" in page
    assert page.count("<li>") == 15


def test_a_hostile_name_is_no_markup(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\x1b[0m"
    for number, value in enumerate((1, 5)):
        made = make_report(
            row(M, name, value, interval=(value - 0.1, value + 0.1)), layers=[(name, "Linear", 1)]
        )
        made.save(tmp_path / f"{number}.json")
    page = read_history(tmp_path).page()
    assert "<script" not in page
    assert "&lt;script" in page
    assert "\x1b" not in page + run("history", tmp_path).out


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    done = run("history", tmp_path)
    assert (done.status, "has 0 reports" in done.err) == (2, True)
    reports(tmp_path, 1, 2)
    done = run("history", tmp_path, "--metric", "rank.deficit")
    assert (done.status, "rank.deficit is not measured in two reports" in done.err) == (2, True)
    assert run("history", tmp_path, "-o", tmp_path / "x.pdf").status == 2
    (tmp_path / "round-3.json").write_text('{"measurements": [], "target": 1}')
    done = run("history", tmp_path)
    assert (done.status, "round-3.json: not a gradaudit report" in done.err) == (2, True)


def test_judged_reports_are_followed_too(tmp_path: Path) -> None:
    for number, value in enumerate((1, 5)):
        made = make_report(row(M, "fc1", value, interval=(value - 0.1, value + 0.1)))
        gate(made).save(tmp_path / f"{number}.json")
    assert len(read_history(tmp_path).turns) == 1
