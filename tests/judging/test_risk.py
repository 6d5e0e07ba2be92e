"""Risk levels and their reasons."""

import pytest
from report_builder import Leak, failed_row, fc1, infinite_row, make_report, row, skipped_row

from gradaudit.judging import Policy, Risk, gate, layer_risks
from gradaudit.judging.risk import UNTRIED
from gradaudit.report import Measurement

pytestmark = pytest.mark.usefixtures("two_audits")


class Proxies(Leak):
    """The same limits, of metrics that try nothing."""

    proxy = True


B, E = "leak.bits", "leak.effort"
WHY = "an attacker learns the attribute from this layer's gradient"

NEITHER = "neither shows nor excludes a value above the max of"
MORE = "times as many records or trials would settle it"
BEYOND = f"{B}: 2.50 exceeds the max of 2: {WHY}"
EASY = f"{E}: 1 is below the min of 10"
BROKEN = f"{E}: could not be measured: NaN"
OPEN = f"{B}: 1.50 [0.100, 2.90] {NEITHER} 2; about 7.8 {MORE}"

CASES: list[tuple[str, list[Measurement], Risk]] = [
    ("low", [fc1(0.5), row(E, "fc1", 20)], Risk("low")),
    ("medium", [fc1(1.5)], Risk("medium", (f"{B}: 1.50 exceeds the max of 1: {WHY}",))),
    ("high", [fc1(2.5)], Risk("high", (BEYOND,))),
    ("high hides the medium", [fc1(2.5), row(E, "fc1", 1)], Risk("high", (BEYOND,))),
    (
        "infinite",
        [infinite_row(B, "fc1")],
        Risk("high", (f"{B}: infinite exceeds the max of 2: {WHY}",)),
    ),
    ("no reason declared", [row(E, "fc1", 1)], Risk("medium", (EASY,))),
    (
        "broken beside a passed one",
        [fc1(0.5), failed_row(E, "fc1", "NaN")],
        Risk("unknown", (BROKEN,)),
    ),
    (
        "broken beside an open one",
        [fc1(1.5, 0.1, 2.9), failed_row(E, "fc1", "NaN")],
        Risk("unknown", (BROKEN, OPEN), "high"),
    ),
    (
        "broken beside a failed one",
        [failed_row(B, "fc1", "NaN"), row(E, "fc1", 1)],
        Risk("medium", (EASY, f"{B}: could not be measured: NaN"), "high"),
    ),
    ("skipped beside a passed one", [fc1(0.5), skipped_row(E, "fc1", "no")], Risk("low")),
    ("skipped", [skipped_row(B, "fc1", "no")], Risk("not tested", (UNTRIED,))),
    ("no rule", [row("rank.deficit", "fc1", 3)], Risk("not tested", (UNTRIED,))),
    ("nothing", [], Risk("not tested", (UNTRIED,))),
    ("ignorance", [fc1(1.5, 0.1, 2.9)], Risk("low", (OPEN,), "high")),
    (
        "medium shown, high open",
        [fc1(1.6, 1.5, 2.4)],
        Risk(
            "medium",
            (
                f"{B}: 1.60 [1.50, 2.40] exceeds the max of 1: {WHY}",
                f"{B}: 1.60 [1.50, 2.40] {NEITHER} 2; about 4 {MORE}",
            ),
            "high",
        ),
    ),
    (
        "medium open, high excluded",
        [fc1(0.9, 0.7, 1.1)],
        Risk("low", (f"{B}: 0.900 [0.700, 1.10] {NEITHER} 1; about 4 {MORE}",), "medium"),
    ),
    (
        "medium open beside high",
        [fc1(3), row(E, "fc1", 11, interval=(9, 13))],
        Risk("high", (f"{B}: 3 exceeds the max of 2: {WHY}",)),
    ),
]


@pytest.mark.parametrize(("rows", "risk"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_risk_of_a_layer(rows: list[Measurement], risk: Risk) -> None:
    report = make_report(*rows, row(B, "fc2", 0.1), row(E, "fc2", 99))
    risks = layer_risks(report)
    assert risks["fc1"] == risk
    assert risks["fc2"] == Risk("low")
    assert list(risks) == ["conv1", "fc1", "fc2"]


def test_a_layer_that_only_proxies_looked_at_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradaudit.judging.policy.audits", lambda: {"leak": Proxies})
    risks = layer_risks(
        make_report(row(B, "conv1", 0.5), fc1(1.5), row(B, "fc2", 1.5, interval=(0, 3)))
    )
    assert risks["conv1"] == Risk("not tested", (UNTRIED,))
    assert risks["fc1"].level == "medium"
    assert str(risks["fc2"]) == "not tested, high not excluded"


def test_the_whole_model_has_a_risk_where_a_rule_speaks_of_it() -> None:
    risks = layer_risks(make_report(row("leak.total", None, 1.0), fc1(0)))
    assert risks[None] == Risk("high", ("leak.total: 1 exceeds the max of 0: sum",))


def test_the_findings_of_a_judged_report_are_kept_unless_a_policy_is_given() -> None:
    report = make_report(fc1(2.5))
    mild = Policy.model_validate({"rules": [{"metric": B, "max": 9}]})
    assert layer_risks(gate(report, mild))["fc1"] == Risk("low")
    strict = Policy.model_validate({"rules": [{"metric": B, "max": 0}]})
    assert layer_risks(gate(report, mild), strict)["fc1"].level == "high"


def test_what_the_policy_ignores_remains_a_risk() -> None:
    policy = Policy.model_validate(
        {"rules": [{"metric": B, "max": 1}], "ignore": [{"metric": B, "reason": "accepted"}]}
    )
    risk = layer_risks(make_report(fc1(3)), policy)["fc1"]
    assert risk == Risk("high", (f"leak.bits: 3 exceeds the max of 1; ignored: accepted: {WHY}",))
