"""``gradaudit sweep`` as a user meets it, with an audit that only counts."""

import csv
import json
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from command_line import Result, invoke
from fake_audit import Counting
from fake_command_line import only_counting

from gradaudit.cli import guarded
from gradaudit.cli.reports import render
from gradaudit.cli.sweep_command import sweep_command
from gradaudit.executors.stopping import Stopped
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Report
from gradaudit.subject import RATE, Subject
from gradaudit.sweeping.sweep_table import write_table
from gradaudit.view.scope import scope_of

__all__ = ["only_counting"]
pytestmark = pytest.mark.usefixtures("only_counting")

SUBJECT = (
    "-m",
    "zoo:mlp?inputs=10&hidden={h}&classes=2",
    "-d",
    "diabetes",
    "--device",
    "cpu",
    "-q",
)
PLAIN = ("-m", "zoo:mlp?inputs=10&hidden=3&classes=2", *SUBJECT[2:])


@cache
def build() -> typer.Typer:
    """``gradaudit counting``, swept."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("counting")(guarded(sweep_command(Counting)))
    return app


@cache
def rendering() -> typer.Typer:
    """``gradaudit render``."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("render")(guarded(render))
    return app


def run(*arguments: object) -> Result:
    return invoke(build(), *arguments)


@pytest.fixture
def swept() -> Report:
    done = run(*SUBJECT, "--over", "h=3,5", "--over", "scale=1,10", "-f", "json")
    assert (done.status, done.err) == (0, "")
    return Report.model_validate_json(done.out)


def test_every_point_is_a_variant_and_the_riskiest_the_headline(swept: Report) -> None:
    rows = swept.select("counting.count", layer="fc1")
    assert {(row.variant.get("h"), row.variant.get("scale")): row.value for row in rows} == {
        (3, 1): 60,
        (3, 10): 600,
        (5, 1): 100,
        (5, 10): 1000,
        (None, None): 1000,
    }
    (headline,) = (row for row in rows if not row.variant)
    assert headline.details == {"h": 5, "scale": 10, "riskiest_by": ["h", "scale"]}
    assert swept.provenance["sweep"] == {"h": ["3", "5"], "scale": ["1", "10"]}


def test_the_table_ends_with_the_sweep() -> None:
    done = run(*SUBJECT, "--over", "h=3,5")
    assert done.out.endswith(
        "\ncounting.count  h=3  h=5\n"
        "──────────────  ───  ───\n"
        "fc1             60   100\n"
        "output          12   20\n"
    )


def test_an_option_of_the_subject_is_varied() -> None:
    done = run(*PLAIN, "--over", "layer=fc1|output", "-f", "json")
    rows = Report.model_validate_json(done.out).measurements
    assert {(row.layer, row.variant.get("layer")) for row in rows if row.variant} == {
        ("fc1", "fc1"),
        ("output", "output"),
    }


def texts(file: Path) -> set[str | None]:
    """Everything that is written in a picture."""
    return {text.text for text in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.slow
def test_curves_have_a_panel_for_each_layer_and_are_drawn_again_from_the_report(
    tmp_path: Path,
) -> None:
    file, report, again = (tmp_path / name for name in ("curves.svg", "sweep.json", "again.svg"))
    over = ("--over", "h=3,5,9", "--over", "scale=1,10")
    assert run(*SUBJECT, *over, "--curves", file, "-o", report).status == 0
    assert {"scale 1", "scale 10", "fc1", "output", "h", "counting.", "count"} <= texts(file)
    drawn = invoke(rendering(), report, "--curves", again, "--metric", "count")
    assert (drawn.status, drawn.out) == (0, "")
    assert again.read_bytes() == file.read_bytes()


def test_layers_are_drawn_relative_to_each_setting_on_request(tmp_path: Path) -> None:
    file = tmp_path / "curves.svg"
    done = run(*PLAIN, "--over", "mode=plain,loud", "--curves", file, "--relative", "-f", "json")
    assert done.status == 0
    assert {"mode plain", "mode loud", "LOESS", "fc1", "output"} <= texts(file)


def test_a_table_of_the_sweep_is_written(tmp_path: Path) -> None:
    file, other = tmp_path / "sweep.csv", tmp_path / "sweep.md"
    both = ("--table", file, "--table", other)
    assert run(*SUBJECT, "--over", "h=3,5", *both, "-f", "json").status == 0
    assert other.read_text().startswith("| h | layer | counting.count |")
    lines = file.read_text().splitlines()
    assert lines[0].startswith("audit,metric,layer,h,value,low,high,confidence,unit,n,baseline,")
    assert any(line.startswith("counting,count,fc1,5,100.0,,,,") for line in lines)


def test_no_cell_of_a_table_is_a_formula(swept: Report, tmp_path: Path) -> None:
    """A spreadsheet runs a text that begins with one of four signs; numbers stay numbers."""
    names = ["=cmd|x!A0", "+1", "-fc1", "@SUM(A1)", "fc=1"]
    first = next(row for row in swept.measurements if row.layer and row.variant)
    rows = [first.model_copy(update={"layer": name, "value": -1.5}) for name in names]
    file = tmp_path / "sweep.csv"
    write_table(file, swept.model_copy(update={"measurements": rows}), first.id)
    read = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["layer"] for row in read] == [f"'{name}" for name in names[:4]] + ["fc=1"]
    assert {row["value"] for row in read} == {"-1.5"}


def test_the_scope_names_every_setting(swept: Report) -> None:
    assert scope_of(swept).varied == "h (3 and 5) and scale (1 and 10)"
    done = run(*PLAIN, "--over", "defense=sign|prune:0.9", "-f", "json")
    shared = scope_of(Report.model_validate_json(done.out)).shared
    assert "defended by sign or prune:0.9" in shared


def test_a_report_of_no_sweep_has_no_curves(swept: Report, tmp_path: Path) -> None:
    plain = {k: v for k, v in swept.provenance.items() if k != "sweep"}
    file = tmp_path / "report.json"
    file.write_text(swept.model_copy(update={"provenance": plain}).model_dump_json())
    done = invoke(rendering(), file, "--table", tmp_path / "x.md", "--metric", "count")
    assert done.status == 2
    assert "the report is not of a sweep" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--over is needed"),
        (("--over", "colour=1,2"), "--over colour: no such option"),
        (("--over", "scale=1,-1"), "--scale"),
        (("--over", "scale=1,2", "--metric", "counts"), "did you mean 'count'?"),
        (("--over", "scale=1,2", "--curves", "x.gif"), "pictures are written as .svg, .png, .pdf"),
        (("--over", "scale=1,2", "--table", "x.xls"), "written as .csv, .md"),
        (("--over", "scale=1,2", "-o", "x.docx"), "x.docx"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_told_before_the_work(arguments: tuple[str, ...], message: str) -> None:
    done = run(*PLAIN, *arguments)
    assert done.status == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_a_crash_at_every_point_ends_with_3() -> None:
    done = run(*PLAIN, "--over", "scale=1,2", "--trouble", "crash")
    assert done.status == 3
    assert "first line" in done.err


def test_json_stays_clean_though_the_audit_prints() -> None:
    done = run(*PLAIN, "--over", "mode=loud,plain", "-f", "json")
    assert json.loads(done.out)["schema_version"] == 1


def test_a_dry_run_prints_every_setting_and_measures_nothing(tmp_path: Path) -> None:
    done = run(*SUBJECT, "--over", "h=3,5", "--dry-run", "-o", tmp_path / "r.json")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.partition(": counting: ")[0] for line in lines[:-1]] == ["h=3", "h=5"]
    assert lines[-1].startswith("together: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("budget", "size"), [("30s", 2), ("20s", 1), ("10s", 0), ("1s", 0)])
def test_a_budget_gives_every_setting_the_same_preset_that_fits(
    budget: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, scale in (("quick", 1.0), ("plain", 2.0), ("thorough", 3.0)):
        monkeypatch.setattr(Counting, name, {"scale": scale})
    monkeypatch.setattr(Counting, "least", {"scale": 1.0})
    monkeypatch.setattr(
        Counting,
        "gradients",
        lambda audit, subject: 8 * RATE * audit.options.scale / subject.work(1.0),
    )
    done = run(*SUBJECT, "--over", "h=3,5", "--budget", budget, "--dry-run")
    assert done.status == 0, done.err
    expected = ("quick", "plain", "thorough")[size]
    assert [line.partition("counting: ")[2] for line in done.out.splitlines()[:-1]] == [
        expected
    ] * 2


def test_an_interrupted_sweep_keeps_its_finished_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Counting.run

    def interrupted(audit: Counting, subject: Subject, progress: Progress) -> Iterator[Measurement]:
        if audit.options.scale == 10:
            raise Stopped(signal.SIGTERM)
        return whole(audit, subject, progress)

    monkeypatch.setattr(Counting, "run", interrupted)
    report, table = tmp_path / "report.json", tmp_path / "table.csv"
    done = run(*PLAIN, "--over", "scale=1,10", "-o", report, "--table", table)
    assert done.status == 143
    kept = Report.from_file(report)
    assert {row.variant.get("scale") for row in kept.rows if row.variant} == {1}
    assert kept.interrupted
    assert table.exists()
    none = run(*PLAIN, "--over", "scale=10,1", "-o", tmp_path / "none.json")
    assert none.status == 143
    assert not (tmp_path / "none.json").exists()


def test_a_sweep_within_its_time_has_the_rows_of_one_without() -> None:
    asked = (*SUBJECT, "--over", "h=3,5", "--scale", 3, "-f", "json")
    plain, timed = run(*asked), run(*asked, "--budget", "5m")
    assert timed.status == plain.status == 0, timed.err
    rows = [Report.model_validate_json(done.out).rows for done in (plain, timed)]
    assert [(row.key, row.value) for row in rows[0]] == [(row.key, row.value) for row in rows[1]]
