"""What a baseline excuses: the same failure, no worse than it was."""

from typing import Any

import pytest
from report_builder import failed_row, infinite_row, make_report, row, skipped_row

from gradaudit.errors import UsageError
from gradaudit.judging import Policy, differences, gate, passed, refuse_another_model
from gradaudit.judging.judge import worse
from gradaudit.report import Finding, Measurement

M = "leak.bits"


def limit(**fields: Any) -> Policy:
    return Policy.model_validate({"rules": [{"metric": M, **fields}]})


CASES: list[tuple[str, Measurement, Measurement, dict[str, float], str]] = [
    ("equal", row(M, "fc1", 3.0), row(M, "fc1", 3.0), {"max": 1}, "known"),
    ("better", row(M, "fc1", 3.0), row(M, "fc1", 2.0), {"max": 1}, "known"),
    ("within a hundredth", row(M, "fc1", 3.0), row(M, "fc1", 3.03), {"max": 1}, "known"),
    ("beyond a hundredth", row(M, "fc1", 3.0), row(M, "fc1", 3.04), {"max": 1}, "failed"),
    ("negative", row(M, "fc1", -3.0), row(M, "fc1", -2.98), {"max": -4}, "known"),
    ("negative and worse", row(M, "fc1", -3.0), row(M, "fc1", -2.96), {"max": -4}, "failed"),
    (
        "within its interval",
        row(M, "fc1", 3.0, interval=(2, 4)),
        row(M, "fc1", 3.9, interval=(1.1, 9)),
        {"max": 1},
        "known",
    ),
    (
        "shown where it was unclear",
        row(M, "fc1", 3.0, interval=(0, 9)),
        row(M, "fc1", 2.9, interval=(2, 4)),
        {"max": 1},
        "failed",
    ),
    (
        "unclear where it was within",
        row(M, "fc1", 0.5, interval=(0.4, 0.6)),
        row(M, "fc1", 0.5, interval=(0, 2)),
        {"max": 1},
        "unclear, fail",
    ),
    (
        "unclear where it was unclear",
        row(M, "fc1", 0.5, interval=(0, 2)),
        row(M, "fc1", 1.5, interval=(0, 3)),
        {"max": 1},
        "unclear, pass",
    ),
    (
        "unclear where it was shown",
        row(M, "fc1", 3.0, interval=(2, 4)),
        row(M, "fc1", 3.0, interval=(0, 6)),
        {"max": 1},
        "unclear, pass",
    ),
    (
        "unclear and perhaps worse",
        row(M, "fc1", 0.5, interval=(0, 2)),
        row(M, "fc1", 2.5, interval=(0, 5)),
        {"max": 1},
        "unclear, pass",
    ),
    (
        "beyond its interval",
        row(M, "fc1", 3.0, interval=(2, 4)),
        row(M, "fc1", 4.5, interval=(4.01, 5)),
        {"max": 1},
        "failed",
    ),
    (
        "beyond its value, in an interval that overlaps",
        row(M, "fc1", 3.0, interval=(2, 4)),
        row(M, "fc1", 4.5, interval=(3.99, 5)),
        {"max": 1},
        "known",
    ),
    (
        "apart on the better side",
        row(M, "fc1", 8.0, interval=(7, 9)),
        row(M, "fc1", 3.0, interval=(2, 4)),
        {"max": 1},
        "known",
    ),
    (
        "an interval that holds what had none",
        row(M, "fc1", 3.0),
        row(M, "fc1", 4.0, interval=(2.9, 5)),
        {"max": 1},
        "known",
    ),
    (
        "an interval beyond what had none",
        row(M, "fc1", 3.0),
        row(M, "fc1", 4.0, interval=(3.01, 5)),
        {"max": 1},
        "failed",
    ),
    ("as far from its limit", row(M, "fc1", 1e-15), row(M, "fc1", 3.8e-16), {"min": 0.1}, "known"),
    ("nearer the limit, worse", row(M, "fc1", 0.09), row(M, "fc1", 0.089), {"min": 0.1}, "failed"),
    ("far beyond zero", row(M, "fc1", 1e-9), row(M, "fc1", 0.009), {"max": -1}, "known"),
    ("farther beyond zero", row(M, "fc1", 1e-9), row(M, "fc1", 0.011), {"max": -1}, "failed"),
    (
        "below its interval",
        row(M, "fc1", 3.0, interval=(2, 4)),
        row(M, "fc1", 1.9),
        {"min": 5},
        "failed",
    ),
    (
        "lower limit, within",
        row(M, "fc1", 3.0, interval=(2, 4)),
        row(M, "fc1", 2.1),
        {"min": 5},
        "known",
    ),
    ("lower limit, tolerance", row(M, "fc1", 3.0), row(M, "fc1", 2.97), {"min": 5}, "known"),
    ("lower limit, worse", row(M, "fc1", 3.0), row(M, "fc1", 2.96), {"min": 5}, "failed"),
    ("new", row(M, "fc1", 0.5), row(M, "fc1", 3.0), {"max": 1}, "failed"),
    ("other layer failed", row(M, "fc2", 9.0), row(M, "fc1", 3.0), {"max": 1}, "failed"),
    (
        "other variant failed",
        row(M, "fc1", 9.0, variant={"round": 1}),
        row(M, "fc1", 3.0),
        {"max": 1},
        "failed",
    ),
    ("infinite as before", infinite_row(M, "fc1"), infinite_row(M, "fc1"), {"max": 1}, "known"),
    ("infinite now", row(M, "fc1", 3.0), infinite_row(M, "fc1"), {"max": 1}, "failed"),
    ("finite again", infinite_row(M, "fc1"), row(M, "fc1", 3.0), {"max": 1}, "known"),
    ("skipped before", skipped_row(M, "fc1", "no"), row(M, "fc1", 3.0), {"max": 1}, "failed"),
    (
        "broken as before",
        failed_row(M, "fc1", "x"),
        failed_row(M, "fc1", "x"),
        {"max": 1},
        "unmeasured",
    ),
    ("fine now", row(M, "fc1", 3.0), row(M, "fc1", 0.5), {"max": 1}, "passed"),
]


@pytest.mark.parametrize(
    ("before", "now", "rule", "outcome"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_failure_is_known_where_it_is_no_worse(
    before: Measurement, now: Measurement, rule: dict[str, float], outcome: str
) -> None:
    other = row("rank.deficit", "fc1", 1.0)
    policy = limit(**rule).model_copy(update={"unclear": "fail"})
    judged = gate(make_report(now, other), policy, baseline=make_report(before, other))
    (finding,) = judged.findings
    assert ", ".join(filter(None, (finding.outcome, finding.unclear))) == outcome
    assert passed(judged) == (outcome in ("known", "passed", "unclear, pass"))
    assert ("known: " in finding.message) is (outcome in ("known", "unclear, pass"))


def test_what_has_no_value_is_worse_and_excuses_nothing() -> None:
    value, none = row(M, "fc1", 3.0), skipped_row(M, "fc1", "no")
    pairs = [(value, none), (none, value), (none, none)]
    limits = ({"max": 1.0}, {"min": 5.0})
    rules = [
        Finding(rule=1, metric=M, level="error", outcome="failed", message="", **x) for x in limits
    ]
    assert all(worse(*pair, rule) for pair in pairs for rule in rules)
    assert not any(worse(value, value, rule) for rule in rules)


def test_the_message_says_what_it_was() -> None:
    judged = gate(
        make_report(row(M, "fc1", 3.0)), limit(max=1), baseline=make_report(row(M, "fc1", 4.0))
    )
    assert judged.findings[0].message == "3 exceeds the max of 1; known: 4 in the baseline"


def test_rows_that_both_reports_lack_still_fail() -> None:
    report = make_report(row("rank.deficit", "fc1", 1.0))
    assert not passed(gate(report, limit(max=1), baseline=report))


def test_each_rule_is_excused_by_itself() -> None:
    policy = Policy.model_validate(
        {"rules": [{"metric": M, "max": 1, "level": "warning"}, {"metric": M, "max": 3}]}
    )
    judged = gate(
        make_report(row(M, "fc1", 3.01)), policy, baseline=make_report(row(M, "fc1", 3.0))
    )
    assert [f.outcome for f in judged.findings] == ["known", "failed"]


def test_differences_between_models_are_told() -> None:
    now = make_report(layers=[("a", "Linear", 4), ("b", "Linear", 4), ("n", "Linear", 1)])
    before = make_report(layers=[("a", "Linear", 4), ("b", "Conv2d", 4), ("o", "Linear", 1)])
    assert differences(now, before) == [
        "does not have the layers n",
        "has more layers: o",
        "has other kinds or sizes of the layers b",
    ]
    assert differences(now, now) == []


def test_the_baseline_of_another_model_is_refused() -> None:
    now, before = make_report(), make_report(layers=[("other", "Linear", 1)], model="zoo:mlp")
    with pytest.raises(
        UsageError, match=r"another model \(zoo:mlp\): it shares no layer with zoo:l"
    ):
        refuse_another_model(now, before)
    refuse_another_model(now, now)
    refuse_another_model(make_report(layers=[]), before)
