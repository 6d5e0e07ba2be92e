"""JSON: the report itself, byte for byte."""

import json
from pathlib import Path

import pytest
from report_builder import infinite_row, make_report, row, skipped_row

from gradaudit.errors import UsageError
from gradaudit.formats import format_for, format_named, formats
from gradaudit.judging import Policy, gate
from gradaudit.report import Report

REPORT = make_report(
    row("leak.bits", "größe\n\x1b", 0.1, interval=(0.0, 1 / 3), variant={"round": 1, "p": 0.5}),
    infinite_row("leak.bits", "fc1"),
    skipped_row("rank.deficit", None, "no"),
)


def test_a_report_comes_back_the_same(tmp_path: Path) -> None:
    judged = gate(REPORT, Policy.model_validate({"rules": [{"metric": "leak.bits", "max": 1}]}))
    for report in (REPORT, judged):
        path = tmp_path / "report.json"
        format_for(path).write(report, path)
        assert Report.from_file(path) == report
        assert path.read_text() == format_named("json").render(report)


def test_a_policy_changes_nothing() -> None:
    policy = Policy.model_validate({"rules": [{"metric": "leak.bits", "max": 1}]})
    assert format_named("json").render(REPORT, policy) == format_named("json").render(REPORT)


def test_it_is_strict_json() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    loaded = json.loads(format_named("json").render(REPORT), parse_constant=refuse)
    assert list(loaded) == [
        "schema_version",
        "tool",
        "target",
        "data",
        "provenance",
        "measurements",
        "findings",
    ]
    assert loaded["measurements"][1]["value"] is None
    assert loaded["measurements"][1]["details"] == {"infinite": True}


def test_many_rows_are_written_without_indentation() -> None:
    rows = [row("leak.bits", f"fc{i}", i) for i in range(2_001)]
    for count, lines in ((2_000, range(20_000, 100_000)), (2_001, range(1, 2))):
        report = REPORT.model_copy(update={"measurements": rows[:count]})
        text = report.to_json()
        assert text.count("\n") in lines
        assert Report.model_validate_json(text) == report


def test_formats_are_found_by_suffix_and_name() -> None:
    assert format_for(Path("x.sarif.json")).name == format_for(Path("x.SARIF")).name == "sarif"
    assert {kind.suffix: name for name, kind in formats().items()}.items() >= {
        (".json", "json"),
        (".md", "markdown"),
        (".txt", "table"),
    }
    assert format_for(Path("REPORT.JSON")).name == "json"
    with pytest.raises(
        UsageError,
        match=r"x\.pdf: no report format has this suffix; there are: \.csv, \.github, \.html",
    ):
        format_for(Path("x.pdf"))
    with pytest.raises(UsageError, match="pdf: no such report format"):
        format_named("pdf")


@pytest.mark.parametrize("name", sorted(formats()))
def test_every_format_shows_every_sort_of_row(name: str) -> None:
    kind = formats()[name]
    assert kind.suffix.startswith(".")
    assert kind.summary
    policy = Policy.model_validate({"rules": [{"metric": "leak.bits", "max": 1}]})
    text = kind().render(REPORT, policy)
    assert text.endswith("\n")
    assert "fc1" in text
    assert kind().render(REPORT, policy) == text
