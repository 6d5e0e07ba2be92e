"""Rows that say the same of many layers as one, and what becomes of them when they are read."""

from pathlib import Path
from typing import Any

import pytest
from report_builder import make_report, row, skipped_row

from gradaudit import Report
from gradaudit.audits.gathering import MOST_APART, as_few, together
from gradaudit.errors import UsageError
from gradaudit.evidence.redaction import redact
from gradaudit.formats import format_named
from gradaudit.judging import gate
from gradaudit.judging.policy import Policy, Rule
from gradaudit.measurement import UNMEASURED, Measurement, counted, singles

pytestmark = pytest.mark.usefixtures("two_audits")
NO_TIME: dict[str, Any] = {"left_out": True}
NAMES = ("conv1", "fc1", "fc2")


def left_out(metric: str, layer: str | None, **fields: Any) -> Measurement:
    return skipped_row(metric, layer, "no time", details=NO_TIME, **fields)


def ragged() -> list[Measurement]:
    """A measured layer of one metric and none of another, and a metric of the model."""
    return [
        row("leak.bits", "conv1", 1.5, interval=(1.0, 2.5)),
        *(left_out("leak.bits", name) for name in NAMES[1:]),
        *(left_out("leak.effort", name) for name in NAMES),
        left_out("leak.total", None),
        left_out("leak.bits", "fc1", variant={"round": 1}),
        *(skipped_row("rank.deficit", name, "no rank here") for name in NAMES),
    ]


def test_what_was_left_out_is_as_few_rows_as_have_other_layers() -> None:
    written = together(ragged())
    few = [each for each in written if UNMEASURED in each.variant]
    assert [(each.metric, each.layer, counted(each)) for each in few] == [
        ("bits", None, 2),
        ("effort", None, 4),
    ]
    assert few[1].details == {
        **NO_TIME,
        "layers": ["conv1", "fc1", "fc2"],
        "metrics": ["effort"],
        "model_metrics": ["total"],
    }
    assert len(written) == 2 + 1 + 1 + 3  # a number, another variant, and what does not apply


def test_every_row_comes_back_from_the_file(tmp_path: Path) -> None:
    report = make_report(*together(ragged()))
    (tmp_path / "r.json").write_text(report.to_json())
    read = Report.from_file(tmp_path / "r.json")
    assert read.measurements == report.measurements
    assert read.by_key() == {each.key: each for each in ragged()}
    assert read.select("leak.effort", layer="fc2")[0].left_out
    assert read.select("leak.total", variant={}) == [left_out("leak.total", None)]


@pytest.mark.parametrize("name", ["table", "markdown", "sarif", "junit", "github"])
def test_findings_and_what_is_shown_are_the_same(name: str) -> None:
    every, few = make_report(*ragged()), make_report(*together(ragged()))
    assert gate(few).findings == gate(every).findings
    assert gate(few).provenance["verdict"] == gate(every).provenance["verdict"]
    assert format_named(name).render(few) == format_named(name).render(every)
    policy = Policy(rules=(Rule(metric="leak.effort", layers=("fc*", "none*"), min=1.0),))
    assert gate(few, policy).findings == gate(every, policy).findings
    assert len(gate(few, policy).findings) == 3


@pytest.mark.parametrize(("layers", "written"), [(MOST_APART, MOST_APART), (MOST_APART + 1, 1)])
def test_what_does_not_apply_is_one_row_of_more_layers_than_are_few(
    layers: int, written: int
) -> None:
    names = [f"l{number}" for number in range(layers)]
    rows = [skipped_row("rank.deficit", name, "no rank here") for name in names]
    assert len(together(rows)) == written
    assert len(as_few(rows[0], {"deficit": names}, [])) == written
    assert [each for one in together(rows) for each in singles(one)] == rows


def test_rows_with_other_reasons_are_told_apart_by_numbers() -> None:
    names = [f"l{number}" for number in range(2 * MOST_APART + 2)]
    rows = [
        skipped_row("rank.deficit", name, f"reason {number % 2}")
        for number, name in enumerate(names)
    ]
    written = together(rows)
    assert [each.variant for each in written] == [{UNMEASURED: 1}, {UNMEASURED: 2}]
    assert make_report(*written).by_key() == {each.key: each for each in rows}


def test_numbers_are_never_made_one_and_a_key_that_two_share_is_still_refused() -> None:
    rows = [row("leak.bits", name, 1.0) for name in NAMES]
    assert together(rows) == rows
    with pytest.raises(ValueError, match="share the key"):
        make_report(*together([rows[0], rows[0]]))


def test_a_copy_with_other_rows_has_rows_of_its_own() -> None:
    report = make_report(*together(ragged()))
    assert len(report.rows) == len(report.by_key())
    assert report.rows_by_place
    other = report.model_copy(update={"measurements": [row("leak.bits", "fc1", 1.0)]})
    assert other.rows == other.measurements
    assert other.rows_by_place == {"leak.bits": {"fc1": other.rows}}
    assert list(other.by_key().values()) == other.rows


def test_names_of_layers_and_metrics_stay_where_words_are_redacted() -> None:
    data = {"adapter": "csv", "attributes": {"effort": {"fc1": 3, "fc2": 4}}}
    report = make_report(*together(ragged()), data=data)
    assert [each.key for each in redact(report).rows] == [each.key for each in report.rows]


def test_a_file_that_names_no_layers_says_it_of_the_model_alone() -> None:
    strange = left_out("leak.bits", None, variant={UNMEASURED: 1}).with_details({"layers": 3})
    assert list(singles(strange)) == [strange]
    assert counted(strange) == 1


@pytest.mark.parametrize(
    ("layers", "metrics", "said"),
    [(2000, 2000, "stands for over 1,000,000 rows"), (1, 2, "share a key")],
)
def test_a_file_is_refused_whose_rows_stand_for_too_many_or_for_the_same(
    tmp_path: Path, layers: int, metrics: int, said: str
) -> None:
    names: dict[str, Any] = {
        "layers": [str(number) for number in range(layers)],
        "metrics": ["bits"] * metrics,
        "model_metrics": [],
    }
    one = left_out("leak.bits", None, variant={UNMEASURED: 1}).with_details(names)
    (tmp_path / "r.json").write_text(make_report(one).to_json())
    with pytest.raises(UsageError, match=said):
        Report.from_file(tmp_path / "r.json")
