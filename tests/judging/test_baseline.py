"""What a baseline excuses: the same failure, no worse than it was."""

from typing import Any

import pytest
from report_builder import failed_row, fc1, infinite_row, make_report, row, skipped_row

from gradaudit.errors import UsageError
from gradaudit.formats import format_named
from gradaudit.judging import (
    Policy,
    differences,
    gate,
    passed,
    refuse_another_model,
    rule_name,
)
from gradaudit.judging.judge import worse
from gradaudit.report import Finding, Measurement, Report

M = "leak.bits"


def limit(**fields: Any) -> Policy:
    return Policy.model_validate({"rules": [{"metric": M, **fields}]})


UP, LOW, DOWN = {"max": 1.0}, {"max": -4.0}, {"min": 5.0}
SKIPPED, BROKEN = skipped_row(M, "fc1", "no"), failed_row(M, "fc1", "x")
ENDLESS = infinite_row(M, "fc1")
CASES: list[tuple[str, Measurement, Measurement, dict[str, float], str]] = [
    ("equal", fc1(3), fc1(3), UP, "known"),
    ("better", fc1(3), fc1(2), UP, "known"),
    ("within a hundredth", fc1(3), fc1(3.03), UP, "known"),
    ("beyond a hundredth", fc1(3), fc1(3.04), UP, "failed"),
    ("negative", fc1(-3), fc1(-2.98), LOW, "known"),
    ("negative and worse", fc1(-3), fc1(-2.96), LOW, "failed"),
    ("within its interval", fc1(3, 2, 4), fc1(3.9, 1.1, 9), UP, "known"),
    ("shown where it was unclear", fc1(3, 0, 9), fc1(2.9, 2, 4), UP, "failed"),
    ("shown and worse where it was unclear", fc1(1, 0, 2), fc1(3, 2.1, 4), UP, "failed"),
    ("shown where it was within", fc1(0.5, 0.4, 0.6), fc1(1.2, 1.1, 1.3), UP, "failed"),
    ("unclear where it was within", fc1(0.5, 0.4, 0.6), fc1(0.5, 0, 2), UP, "unclear, pass"),
    ("unclear where a value was within", fc1(0.5), fc1(2, 0.6, 3), UP, "unclear, fail"),
    ("unclear where it was unclear", fc1(0.5, 0, 2), fc1(1.5, 0, 3), UP, "unclear, pass"),
    ("unclear where it was shown", fc1(3, 2, 4), fc1(3, 0, 6), UP, "unclear, pass"),
    ("unclear and perhaps worse", fc1(0.5, 0, 2), fc1(2.5, 0, 5), UP, "unclear, pass"),
    ("beyond its interval", fc1(3, 2, 4), fc1(4.5, 4.01, 5), UP, "failed"),
    ("beyond its value, overlapping", fc1(3, 2, 4), fc1(4.5, 3.99, 5), UP, "known"),
    ("apart on the better side", fc1(8, 7, 9), fc1(3, 2, 4), UP, "known"),
    ("an interval that holds what had none", fc1(3), fc1(4, 2.9, 5), UP, "known"),
    ("an interval beyond what had none", fc1(3), fc1(4, 3.01, 5), UP, "failed"),
    ("as far from its limit", fc1(1e-15), fc1(3.8e-16), {"min": 0.1}, "known"),
    ("nearer the limit, worse", fc1(0.09), fc1(0.089), {"min": 0.1}, "failed"),
    ("far beyond zero", fc1(1e-9), fc1(0.009), {"max": -1}, "known"),
    ("farther beyond zero", fc1(1e-9), fc1(0.011), {"max": -1}, "failed"),
    ("below its interval", fc1(3, 2, 4), fc1(1.9), DOWN, "failed"),
    ("lower limit, within", fc1(3, 2, 4), fc1(2.1), DOWN, "known"),
    ("lower limit, tolerance", fc1(3), fc1(2.97), DOWN, "known"),
    ("lower limit, worse", fc1(3), fc1(2.96), DOWN, "failed"),
    ("new", fc1(0.5), fc1(3), UP, "failed"),
    ("other layer failed", row(M, "fc2", 9.0), fc1(3), UP, "failed"),
    ("other variant failed", fc1(9, variant={"round": 1}), fc1(3), UP, "failed"),
    ("infinite as before", ENDLESS, ENDLESS, UP, "known"),
    ("infinite now", fc1(3), ENDLESS, UP, "failed"),
    ("finite again", ENDLESS, fc1(3), UP, "known"),
    ("skipped before", SKIPPED, fc1(3), UP, "failed"),
    ("broken as before", BROKEN, BROKEN, UP, "unmeasured"),
    ("fine now", fc1(3), fc1(0.5), UP, "passed"),
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
    value = fc1(3)
    pairs = [(value, SKIPPED), (SKIPPED, value), (SKIPPED, SKIPPED)]
    rules = [
        Finding(rule=1, metric=M, level="error", outcome="failed", message="", **limit)
        for limit in (UP, DOWN)
    ]
    assert all(worse(*pair, rule) for pair in pairs for rule in rules)
    assert not any(worse(value, value, rule) for rule in rules)


def test_the_message_says_what_it_was() -> None:
    judged = gate(make_report(fc1(3)), limit(max=1), baseline=make_report(fc1(4)))
    assert judged.findings[0].message == "3 exceeds the max of 1; known: 4 in the baseline"


def test_rows_that_both_reports_lack_still_fail() -> None:
    report = make_report(row("rank.deficit", "fc1", 1.0))
    assert not passed(gate(report, limit(max=1), baseline=report))


def test_each_rule_is_excused_by_itself() -> None:
    policy = Policy.model_validate(
        {"rules": [{"metric": M, "max": 1, "level": "warning"}, {"metric": M, "max": 3}]}
    )
    judged = gate(make_report(fc1(3.01)), policy, baseline=make_report(fc1(3)))
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


def test_differences_between_plans_are_told() -> None:
    def planned(digest: str, **presets: str) -> Report:
        plan = {"hash": digest, "audits": {name: {"preset": p} for name, p in presets.items()}}
        report = make_report(fc1(1))
        return report.model_copy(update={"provenance": {**report.provenance, "plan": plan}})

    now = planned("1", vinfo="quick", subspace="plain")
    before = planned("2", vinfo="plain", subspace="plain", floor="plain")
    words = "has another plan: other presets, records, layers or options of floor, vinfo"
    assert differences(now, before) == [words]
    assert differences(now, planned("1", vinfo="plain")) == []
    assert differences(make_report(fc1(1)), before) == []


@pytest.mark.usefixtures("two_audits")
@pytest.mark.parametrize("suffix", ["markdown", "html", "table", "github", "sarif", "junit"])
def test_every_format_says_what_the_baseline_and_the_exceptions_had_no_effect_on(
    suffix: str,
) -> None:
    layers = [("fc1", "Linear", 1), ("new", "Linear", 1)]
    now = make_report(row(M, "new", 3.0), layers=layers)
    before = make_report(row(M, "fc1", 3.0), layers=[("fc1", "Linear", 1), ("old", "Linear", 1)])
    rules = {"rules": [{"metric": M, "max": 1}]}
    ignore = [{"metric": M, "layers": "conv9", "reason": "not there"}]
    policy = Policy.model_validate({**rules, "ignore": ignore})
    judged = gate(now, policy, baseline=before)
    text = " ".join(format_named(suffix, every=True).render(judged).split())
    assert "the baseline has no row that a rule judges here: nothing is compared" in text
    assert "the baseline has more layers: old" in text
    assert "matches no row that a rule judges" in text


def test_a_rule_is_named_by_its_place_in_the_file_or_by_what_set_it() -> None:
    bounded = row("dp-audit.epsilon_lower", None, 2.0, details={"claimed": 1.0})
    policy = Policy.model_validate(
        {"rules": [{"metric": M, "max": 1}], "extends": "default", "name": "mine.yaml"}
    )
    judged = gate(make_report(fc1(3.0), row("vinfo.auroc", "fc1", 0.9), bounded), policy)
    named = {x.metric: rule_name(x.rule, judged) for x in judged.findings if x.rule}
    assert named == {
        M: "rule 1",
        "vinfo.auroc": "default policy",
        "dp-audit.epsilon_lower": "claim",
    }
