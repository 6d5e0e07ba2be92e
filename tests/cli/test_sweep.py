"""``gradaudit sweep`` as a user meets it, with an audit that only counts."""

import json
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from command_line import Result, invoke
from fake_audit import Counting
from fake_command_line import only_counting

from gradaudit.cli import guarded
from gradaudit.cli.audit import sweep_command
from gradaudit.report import Report

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


@pytest.mark.slow
def test_curves_have_a_panel_for_each_value_of_the_second_axis(tmp_path: Path) -> None:
    file = tmp_path / "curves.svg"
    done = run(*SUBJECT, "--over", "h=3,5,9", "--over", "scale=1,10", "--curves", file)
    assert done.status == 0
    texts = [text.text for text in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")]
    assert {"scale 1", "scale 10", "fc1", "output", "h", "counting.count"} <= set(texts)


def test_names_instead_of_numbers_are_drawn_over_the_layers(tmp_path: Path) -> None:
    file = tmp_path / "curves.svg"
    done = run(*PLAIN, "--over", "mode=plain,loud", "--curves", file, "-f", "json")
    assert done.status == 0
    texts = [text.text for text in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")]
    assert {"plain", "loud", "LOESS", "fc1", "output"} <= set(texts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--over is needed"),
        (("--over", "colour=1,2"), "--over colour: no such option"),
        (("--over", "scale=1,-1"), "--scale"),
        (("--over", "scale=1,2", "--metric", "counts"), "did you mean 'count'?"),
        (("--over", "scale=1,2", "--curves", "x.gif"), "pictures are written as .svg or .png"),
        (
            ("--over", "mode=plain,loud", "--over", "scale=1,2,3,4,5,6,7", "--curves", "x.svg"),
            "7 panels",
        ),
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
