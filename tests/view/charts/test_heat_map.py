"""The heat map: what a cell says of a question, by what it rests on."""

import pytest
from report_builder import failed_row, make_report, row, skipped_row

from gradaudit.audits import Metric
from gradaudit.judging import Policy, gate
from gradaudit.report import Measurement, Report
from gradaudit.view import view
from gradaudit.view.charts.heat_map import QUESTIONS, HeatCell, HeatLine, HeatMap

pytestmark = pytest.mark.usefixtures("two_audits")

SOLVED = {"closed_form": True}


def map_of(*rows: Measurement) -> HeatMap:
    return view(make_report(*rows)).heat_map


def asked(line: HeatLine | None, question: str) -> HeatCell:
    assert line is not None
    return line.cells[list(QUESTIONS).index(question)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bits", "word", "level", "possible"),
    [
        (row("leak.bits", "conv1", 3.0, interval=(2.5, 3.5)), "high", "high", None),
        (row("leak.bits", "conv1", 1.5, interval=(1.2, 1.8)), "medium", "medium", None),
        (row("leak.bits", "conv1", 1.9, interval=(1.2, 2.5)), "medium, high?", "medium", "high"),
        (row("leak.bits", "conv1", 0.9, interval=(0.5, 2.5)), "high?", None, "high"),
        (row("leak.bits", "conv1", 0.5, interval=(0.1, 0.9)), "low", "low", None),
        (failed_row("leak.bits", "conv1", "NaN"), "failed", None, None),
        (skipped_row("leak.bits", "conv1", "no such layer"), "not looked at", None, None),
    ],
)
def test_a_cell_says_its_level_or_why_it_has_none(
    bits: Measurement, word: str, level: str | None, possible: str | None
) -> None:
    cell = asked(map_of(bits, row("leak.bits", "fc1", 0.0)).lines[0], "attribute")
    assert (cell.word, cell.level, cell.possible) == (word, level, possible)


def test_the_number_of_a_cell_is_that_of_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of a metric which the policy sets no limit for, nor of one within its limit."""
    names = ("bits", "note", "total")
    known = {f"leak.{name}": Metric(id=name, title=name, question="records") for name in names}
    monkeypatch.setattr("gradaudit.view.layers.known_metrics", lambda: known)
    rules = [{"metric": f"leak.{name}", "max": 2} for name in ("bits", "total")]
    for bits, total, number in ((1, 3, "3"), (3, 1, "3"), (1, 1, "1")):
        rows = [row("leak.bits", "fc1", bits), row("leak.note", "fc1", 7)]
        report = make_report(*rows, row("leak.total", "fc1", total))
        shown = view(report, Policy.model_validate({"rules": rules})).heat_map
        cell = asked(shown.lines[1], "records")
        assert (cell.word, cell.number) == ("high" if number == "3" else "low", number)


def test_the_number_of_a_reader_that_attacks_nothing_is_no_low_risk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [row("leak.bits", "conv1", 0.5, interval=(0.1, 0.9))]
    assert asked(map_of(*rows).lines[0], "attribute").word == "low"
    monkeypatch.setattr("gradaudit.view.charts.heat_map.proxies", lambda: {"leak.bits"})
    cell = asked(map_of(*rows).lines[0], "attribute")
    assert (cell.word, cell.level, cell.number) == ("no attack", None, "0.500")


def test_a_number_that_no_rule_judged_is_neither_low_nor_high() -> None:
    found = map_of(row("leak.bits", "conv1", 0.5), row("rank.deficit", "conv1", 12))
    cell = asked(found.lines[0], "freedom")
    assert (cell.word, cell.level) == ("not judged", None)
    unjudged = view(make_report(row("rank.deficit", "conv1", 12))).heat_map
    assert asked(unjudged.lines[0], "freedom").word == "measured"


def test_every_question_has_a_cell_whether_anybody_looked_or_not() -> None:
    found = map_of(row("leak.bits", "conv1", 0.5))
    assert [line.name for line in found.lines] == ["conv1", "fc1", "fc2"]
    for line in found.lines:
        assert [cell.question for cell in line.cells] == list(QUESTIONS)
    assert asked(found.lines[0], "labels").alone
    assert asked(found.lines[1], "attribute").alone
    assert found.whole is None


def test_an_input_in_closed_form_is_the_worst_case() -> None:
    skipped = skipped_row("rank.deficit", "fc1", "in closed form", details=SOLVED)
    shown = view(make_report(row("rank.deficit", "conv1", 0), skipped))
    cell = asked(shown.heat_map.lines[1], "freedom")
    assert (cell.word, cell.level, cell.number) == ("worst case", "high", "0")
    assert dict(cell.answers[0].facts) == {"rank.deficit": "no number: in closed form"}
    (column,) = [i for i, x in enumerate(shown.layers.questions) if x.question == "freedom"]
    assert shown.layers.lines[1].answers[column].brief == "worst"
    plain = skipped_row("rank.deficit", "fc1", "no convolution")
    assert asked(map_of(row("rank.deficit", "conv1", 0), plain).lines[1], "freedom").alone


def test_the_gravest_of_all_numbers_that_answer_a_question_colours_the_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``leak.bits`` is shown, but a second metric of the question is beyond an error rule."""
    rows = [row("leak.bits", "conv1", 1.5), row("rank.deficit", "conv1", 3)]
    judged = gate(make_report(*rows), _policy({"rank.deficit": 2.0, "leak.bits": 1.8}))
    from report_builder import Leak, Rank

    twin = Rank.metrics[0].__class__(id="deficit", title="Rank deficit", question="attribute")
    monkeypatch.setattr(Rank, "metrics", (twin,))
    monkeypatch.setattr(
        "gradaudit.view.layers.known_metrics",
        lambda: {"leak.bits": Leak.metrics[0], "rank.deficit": twin},
    )
    cell = asked(view(judged).heat_map.lines[0], "attribute")
    assert (cell.word, cell.level) == ("high", "high")
    assert {answer.column.metric for answer in cell.answers} == {"leak.bits", "rank.deficit"}


def test_the_worst_layer_is_named_where_any_is_at_risk() -> None:
    found = map_of(row("leak.bits", "conv1", 1.5), row("leak.bits", "fc2", 3.0))
    assert found.worst == 2
    assert map_of(row("leak.bits", "conv1", 0.5), row("leak.bits", "fc2", 0.3)).worst is None


def test_the_whole_update_has_a_line_of_its_own() -> None:
    found = map_of(row("leak.bits", "conv1", 0.5), row("leak.total", None, 2.0))
    cell = asked(found.whole, "records")
    assert (cell.place, cell.word, cell.number) == ("whole update", "high", "2")


def test_hidden_layers_are_named() -> None:
    made = make_report(row("leak.bits", "conv1", 0.5))
    made.provenance["hidden"] = ["fc3"]
    assert view(made).heat_map.hidden == ("fc3",)


def test_a_cell_opens_its_number_interval_floor_and_limits() -> None:
    permuted = {"permuted": {"value": 0.1, "interval": [0.0, 0.2]}}
    found = map_of(
        row("leak.bits", "conv1", 3.0, interval=(2.5, 3.5), details=permuted),
        row("leak.bits", "fc1", 3.0, n=4),
    )
    assert dict(asked(found.lines[0], "attribute").answers[0].facts) == {
        "leak.bits": "3 bit",
        "95 % interval": "2.50 to 3.50",
        "by chance": "0.100 [0, 0.200] for a permuted attribute",
        "limits": "high above 2; medium above 1",
    }
    assert dict(asked(found.lines[1], "attribute").answers[0].facts) == {
        "leak.bits": "3 bit",
        "interval": "none, from 4 measurements",
        "by chance": "0 where nothing is given away",
        "limits": "high above 2; medium above 1",
    }


def _policy(limits: dict[str, float]) -> Policy:
    return Policy.model_validate(
        {"rules": [{"metric": metric, "max": limit} for metric, limit in limits.items()]}
    )


def test_a_report_of_no_layers_has_an_empty_map() -> None:
    empty: Report = make_report(layers=())
    assert view(empty).heat_map == HeatMap((), None, None, ())
