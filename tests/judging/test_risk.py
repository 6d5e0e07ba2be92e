"""Risk levels and their reasons."""

import pytest
from report_builder import failed_row, infinite_row, make_report, row, skipped_row

from gradaudit.judging import Policy, Risk, gate, layer_risks
from gradaudit.report import Measurement

pytestmark = pytest.mark.usefixtures("two_audits")

B, E = "leak.bits", "leak.effort"
WHY = "an attacker learns the attribute from this layer's gradient"

CASES: list[tuple[str, list[Measurement], Risk]] = [
    ("low", [row(B, "fc1", 0.5), row(E, "fc1", 20)], Risk("low")),
    (
        "medium",
        [row(B, "fc1", 1.5)],
        Risk("medium", (f"leak.bits: 1.50 exceeds the max of 1: {WHY}",)),
    ),
    ("high", [row(B, "fc1", 2.5)], Risk("high", (f"leak.bits: 2.50 exceeds the max of 2: {WHY}",))),
    (
        "high hides the medium",
        [row(B, "fc1", 2.5), row(E, "fc1", 1)],
        Risk("high", (f"leak.bits: 2.50 exceeds the max of 2: {WHY}",)),
    ),
    (
        "infinite",
        [infinite_row(B, "fc1")],
        Risk("high", (f"leak.bits: infinite exceeds the max of 2: {WHY}",)),
    ),
    (
        "no reason declared",
        [row(E, "fc1", 1)],
        Risk("medium", ("leak.effort: 1 is below the min of 10",)),
    ),
    (
        "broken beside a passed one",
        [row(B, "fc1", 0.5), failed_row(E, "fc1", "NaN")],
        Risk("unknown", ("leak.effort: could not be measured: NaN",)),
    ),
    (
        "broken beside a failed one",
        [failed_row(B, "fc1", "NaN"), row(E, "fc1", 1)],
        Risk("medium", ("leak.effort: 1 is below the min of 10",)),
    ),
    ("skipped beside a passed one", [row(B, "fc1", 0.5), skipped_row(E, "fc1", "no")], Risk("low")),
    ("skipped", [skipped_row(B, "fc1", "no")], Risk("unknown", ("no rule judged this layer",))),
    ("nothing", [], Risk("unknown", ("no rule judged this layer",))),
]


@pytest.mark.parametrize(("rows", "risk"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_risk_of_a_layer(rows: list[Measurement], risk: Risk) -> None:
    report = make_report(*rows, row(B, "fc2", 0.1), row(E, "fc2", 99))
    risks = layer_risks(report)
    assert risks["fc1"] == risk
    assert risks["fc2"] == Risk("low")
    assert list(risks) == ["conv1", "fc1", "fc2"]


def test_the_whole_model_has_a_risk_where_a_rule_speaks_of_it() -> None:
    risks = layer_risks(make_report(row("leak.total", None, 1.0), row(B, "fc1", 0)))
    assert risks[None] == Risk("high", ("leak.total: 1 exceeds the max of 0: sum",))


def test_the_findings_of_a_judged_report_are_kept_unless_a_policy_is_given() -> None:
    report = make_report(row(B, "fc1", 2.5))
    mild = Policy.model_validate({"rules": [{"metric": B, "max": 9}]})
    assert layer_risks(gate(report, mild))["fc1"] == Risk("low")
    strict = Policy.model_validate({"rules": [{"metric": B, "max": 0}]})
    assert layer_risks(gate(report, mild), strict)["fc1"].level == "high"


def test_what_the_policy_ignores_remains_a_risk() -> None:
    policy = Policy.model_validate(
        {"rules": [{"metric": B, "max": 1}], "ignore": [{"metric": B, "reason": "accepted"}]}
    )
    risk = layer_risks(make_report(row(B, "fc1", 3)), policy)["fc1"]
    assert risk == Risk("high", (f"leak.bits: 3 exceeds the max of 1; ignored: accepted: {WHY}",))
