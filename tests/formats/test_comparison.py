"""Changes between two reports, row by row."""

from typing import Any

import pytest
from report_builder import failed_row, infinite_row, make_report, row, skipped_row

from gradaudit.evidence.changes import Change, changes, outcomes, side, sorted_changes, tally
from gradaudit.report import Measurement, Report

M = "leak.bits"

OVERLAPS: list[tuple[tuple[float, float] | None, tuple[float, float] | None, bool | None]] = [
    ((0, 1), (2, 3), False),
    ((2, 3), (0, 1), False),
    ((0, 1), (1, 2), True),
    ((0, 9), (4, 5), True),
    ((4, 5), (0, 9), True),
    (None, (0, 1), None),
    ((0, 1), None, None),
]


@pytest.mark.parametrize(("old", "new", "expected"), OVERLAPS, ids=str)
def test_overlap(old: Any, new: Any, expected: bool | None) -> None:
    rows = [row(M, "a", 0.0) if i is None else row(M, "a", 0.0, interval=i) for i in (old, new)]
    assert Change(*rows).overlap is expected


WORDS: list[tuple[Measurement | None, Measurement | None, float | None, str]] = [
    (row(M, "a", 2.0), row(M, "a", 2.5), 0.5, "+0.500 (+25 %)"),
    (row(M, "a", 2.0), row(M, "a", 1.0), -1.0, "-1 (-50 %)"),
    (row(M, "a", -2.0), row(M, "a", -1.0), 1.0, "+1 (+50 %)"),
    (row(M, "a", 0.0), row(M, "a", 1.0), 1.0, "+1"),
    (row(M, "a", 2.0), infinite_row(M, "a"), None, ""),
    (row(M, "a", 2.0), skipped_row(M, "a", "no"), None, ""),
    (None, row(M, "a", 2.0), None, ""),
    (row(M, "a", 2.0), None, None, ""),
]


@pytest.mark.parametrize(("old", "new", "difference", "words"), WORDS)
def test_the_difference_and_its_words(
    old: Measurement | None, new: Measurement | None, difference: float | None, words: str
) -> None:
    change = Change(old, new)
    assert change.difference == difference
    assert change.words == words


SAME: list[tuple[Measurement | None, Measurement | None, bool]] = [
    (row(M, "a", 2.0), row(M, "a", 2.0, n=5), True),
    (row(M, "a", 2.0), row(M, "a", 2.1), False),
    (row(M, "a", 2.0, interval=(1, 3)), row(M, "a", 2.0, interval=(1, 4)), False),
    (skipped_row(M, "a", "x"), skipped_row(M, "a", "y"), True),
    (skipped_row(M, "a", "x"), failed_row(M, "a", "x"), False),
    (infinite_row(M, "a"), infinite_row(M, "a"), True),
    (infinite_row(M, "a"), row(M, "a", 1.0), False),
    (None, skipped_row(M, "a", "x"), False),
]


@pytest.mark.parametrize(("old", "new", "same"), SAME)
def test_sameness(old: Measurement | None, new: Measurement | None, same: bool) -> None:
    assert Change(old, new).same is same


def test_rows_are_matched_by_key_in_the_new_order() -> None:
    old = make_report(row(M, "a", 1), row(M, "b", 2), row(M, "b", 5, variant={"r": 1}))
    new = make_report(row(M, "c", 3), row(M, "b", 4), row(M, "b", 6, variant={"r": 1}))

    def values(variants: bool) -> list[tuple[str, str]]:
        found = changes(old, new, variants=variants)
        return [(side(change.old), side(change.new)) for change in found]

    assert values(False) == [("absent", "3"), ("2", "4"), ("1", "absent")]
    assert values(True) == [("absent", "3"), ("2", "4"), ("5", "6"), ("1", "absent")]


def test_sides() -> None:
    assert side(row(M, "a", 2.0, interval=(1, 3))) == "2 [1, 3]"
    assert side(skipped_row(M, "a", "x")) == "skipped"
    assert side(failed_row(M, "a", "x")) == "failed"
    assert side(infinite_row(M, "a")) == "infinite"


def test_a_doubt_about_a_side_is_marked() -> None:
    doubted = row("leak.bits", "fc1", 2.0, details={"warning": "only 4 repetitions"})
    assert side(doubted) == "2 !"
    assert "! marks numbers that are imprecise" in tally([Change(None, doubted)], 0)
    assert "!" not in tally([Change(None, row("leak.bits", "fc1", 2.0))], 0)


def test_as_json() -> None:
    change = Change(row(M, "a", 1.0, interval=(0, 2)), infinite_row(M, "a"))
    assert change.to_json() == {
        "audit": "leak",
        "metric": "bits",
        "layer": "a",
        "variant": {},
        "old": {"status": "measured", "value": 1.0, "interval": [0.0, 2.0]},
        "new": {"status": "measured", "value": None, "interval": None, "infinite": True},
        "difference": None,
        "intervals_overlap": None,
        "direction": None,
        "crossed": None,
    }


@pytest.mark.usefixtures("two_audits")
@pytest.mark.parametrize(("ends", "shown"), [([0.5, 3.5], False), ([2.5, 3.5], True)])
def test_what_a_value_is_known_to_serves_as_interval(ends: list[float], shown: bool) -> None:
    old, new = (
        row(M, "a", x, details={"known_to": y}) for x, y in ((1.0, [0.5, 1.5]), (3.0, ends))
    )
    change = Change(old, new)
    assert (change.shown, change.direction == "worse") == (shown, shown)


@pytest.mark.parametrize(
    ("metric", "old", "new", "shown"),
    [
        ("sensitivity.input_f", 2.0, 2.01, False),
        ("sensitivity.input_f", 2.0, 2.03, True),
        ("attack.relative_error", 4.8e-16, 1.9e-12, False),
        ("attack.relative_error", 4.8e-16, 0.006, True),
        ("attack.mse", 4.8e-16, 1.9e-12, True),
    ],
)
def test_without_intervals_a_change_is_a_hundredth_of_the_value_or_the_distance_from_a_limit(
    metric: str, old: float, new: float, shown: bool
) -> None:
    change = Change(row(metric, "a", old), row(metric, "a", new))
    assert change.shown is shown
    assert shown or change.direction is None


DIRECTIONS: list[tuple[Measurement, Measurement, str | None]] = [
    (row(M, "a", 1.0, interval=(0, 2)), row(M, "a", 4.0, interval=(3, 5)), "worse"),
    (row(M, "a", 4.0, interval=(3, 5)), row(M, "a", 1.0, interval=(0, 2)), "better"),
    (row(M, "a", 1.0, interval=(0, 2)), row(M, "a", 2.0, interval=(1, 3)), None),
    (row(M, "a", 1.0), row(M, "a", 1.02), "worse"),
    (row(M, "a", 1.0), row(M, "a", 1.005), None),
    (row(M, "a", 1.0), infinite_row(M, "a"), "worse"),
    (infinite_row(M, "a"), row(M, "a", 1.0), "better"),
    (row("leak.effort", "a", 5.0), row("leak.effort", "a", 4.0), "worse"),
    (row("leak.note", "a", 5.0), row("leak.note", "a", 4.0), None),
    (row("other.metric", "a", 5.0), row("other.metric", "a", 4.0), None),
    (row(M, "a", 1.0), skipped_row(M, "a", "no"), None),
]


@pytest.mark.usefixtures("two_audits")
@pytest.mark.parametrize(("old", "new", "direction"), DIRECTIONS)
def test_the_direction_of_a_change(
    old: Measurement, new: Measurement, direction: str | None
) -> None:
    assert Change(old, new).direction == direction


@pytest.mark.usefixtures("two_audits")
def test_limits_that_are_crossed_come_first() -> None:
    """Of bits the default limits are 1 and 2, as warning and error; the graver is named."""
    ends = {"in": (0.1, 0.3), "on": (0.2, 1.5), "over": (1.4, 1.6), "far": (8.0, 9.0)}

    def report(*names: str) -> Report:
        layers = zip("abcd", names, strict=True)
        return make_report(
            *(row(M, name, sum(ends[x]) / 2, interval=ends[x]) for name, x in layers),
            layers=[(name, "Linear", 1) for name in "abcd"],
        )

    old, new = report("in", "over", "in", "on"), report("on", "in", "far", "over")
    found = sorted_changes(changes(old, new))
    assert [(x.row.layer, x.reading) for x in found] == [
        ("c", "worse, beyond max 2"),
        ("b", "better, within max 1"),
        ("d", "overlap, beyond max 1"),
        ("a", "overlap"),
    ]


@pytest.mark.usefixtures("two_audits")
def test_the_verdicts_come_first_and_the_findings_that_came_or_went() -> None:
    old = make_report(row(M, "fc1", 3.0), row("leak.total", None, -5.0))
    new = make_report(row(M, "fc1", 0.1), row("leak.total", None, 5.0))
    new.provenance["plan"] = {"left_out": ["vinfo"]}
    lines = outcomes(["old.json", "new.json"], [old, new])
    assert lines == [
        "old.json: FAILED by the default policy",
        "new.json: FAILED by the default policy",
        "  not all was run: vinfo was left out (a longer --budget runs more)",
        "came: HIGH Records are reconstructed (whole update)",
        "went: HIGH The private attribute of a batch is inferred (fc1)",
    ]


def test_shares_are_compared_among_the_same_layers_alone() -> None:
    both = [row("leak.bits_share", "fc1", 0.5), row(M, "fc1", 1.0)]
    old, new = make_report(*both), make_report(*both)
    assert len(list(changes(old, new))) == 2
    new.provenance["hidden"] = ["fc2"]
    assert [each.row.metric for each in changes(old, new)] == ["bits"]
    assert "a has other hidden layers: none → fc2" in outcomes(["a", "b"], [old, new])
    assert outcomes(["a", "b"], [old, new])[-1].endswith("shares of layers are not compared")


@pytest.mark.usefixtures("two_audits")
def test_a_finding_moves_once_and_only_where_its_severity_differs() -> None:
    """Of bits the default limits are 1 and 2, as warning and error."""
    ends = {"low": (0.1, 0.3), "open": (0.5, 1.5), "medium": (1.2, 1.6), "high": (8.0, 9.0)}

    def report(*names: str) -> Report:
        layers = zip("abcd", names, strict=True)
        return make_report(
            *(row(M, name, sum(ends[x]) / 2, interval=ends[x]) for name, x in layers),
            layers=[(name, "Linear", 1) for name in "abcd"],
        )

    old, new = report("high", "high", "high", "low"), report("high", "medium", "open", "open")
    new.provenance["defenses"] = ["prune:0.99"]
    moved = "The private attribute of a batch is inferred"
    assert outcomes(["old", "new"], [old, new])[2:] == [
        "old has other defenses: none → prune:0.99",
        f"changed: HIGH → MEDIUM {moved} (b)",
        f"went: HIGH {moved} (c), now open",
    ]
    assert outcomes(["old", "new"], [new, old])[-2:] == [
        f"came: HIGH {moved} (c), was open",
        f"changed: MEDIUM → HIGH {moved} (b)",
    ]
    found = {x.row.layer: x.crossed for x in changes(old, new)}
    assert found == {"a": "", "b": "within max 2", "c": "within max 2", "d": ""}
    assert "2 crossed a limit" in tally(list(changes(old, new)), 0)


@pytest.mark.usefixtures("two_audits")
def test_a_headline_crosses_the_limit_of_the_rows_that_it_stands_for() -> None:
    def report(*values: float) -> Report:
        rows = [
            row(M, "fc1", value, variant={"attack": name})
            for name, value in zip("xy", values, strict=True)
        ]
        return make_report(row(M, "fc1", max(values), details={"attack": "x"}), *rows)

    (crossed,) = {x.crossed for x in changes(report(3.0, 0.5), report(0.4, 0.5))}
    assert crossed == "within max 2"


def test_a_change_from_next_to_nothing_is_no_percentage() -> None:
    assert Change(row(M, "a", 3e-16), row(M, "a", 1.0)).words == "+1.00"
