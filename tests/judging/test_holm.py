"""Holm's procedure against p-values and thresholds worked out by hand."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pytest
from report_builder import infinite_row, make_report, row

from gradaudit.core.text import UNBOUNDED
from gradaudit.judging import Policy, Rule, gate
from gradaudit.judging.case import Case, Claim, correct, corrected_ends
from gradaudit.report import Report

Z = NormalDist().inv_cdf
M = "leak.bits"


def claim(p_value: float, confidence: float = 0.95) -> Claim:
    """A claim with this p-value: estimate 0, standard deviation 1, limit Φ⁻¹(1 − p)."""
    half = Z(1 - (1 - confidence) / 2)
    return Claim(limit=Z(1 - p_value), upper=half, half_width=half, confidence=confidence)


def granted(claims: list[Claim]) -> list[bool]:
    return [end <= c.limit for end, c in zip(corrected_ends(claims), claims, strict=True)]


def test_a_p_value_is_read_off_the_interval() -> None:
    assert [round(claim(p).p_value, 12) for p in (0.2, 0.025, 1e-6)] == [0.2, 0.025, 1e-6]


def test_intervals_of_few_repetitions_are_extended_as_students() -> None:
    """Five repetitions: t of 4 degrees of freedom is 2.776 at 0.025 and 3.495 at 0.0125."""
    rows = [row(M, name, 0.0, interval=(-2.776, 2.776), n=5) for name in "ab"]
    policy = Policy.model_validate({"rules": [{"metric": M, "max": 3.4}], "family": "holm"})
    findings = gate(make_report(*rows), policy).findings
    assert [f.outcome for f in findings] == ["unclear", "unclear"]
    assert "corrected to [-3.49, 3.49]" in findings[0].message
    wider = policy.model_copy(update={"rules": (policy.rules[0].model_copy(update={"max": 3.6}),)})
    assert [f.outcome for f in gate(make_report(*rows), wider).findings] == ["passed", "passed"]
    student = Claim(limit=3.747, upper=2.776, half_width=2.776, confidence=0.95, degrees=4)
    assert student.p_value == pytest.approx(0.01, abs=1e-4)


@pytest.mark.parametrize("n", [1, 2])
def test_two_repetitions_have_one_degree_of_freedom_and_one_no_fewer(n: int) -> None:
    """Cauchy's law: 12.706 at 0.025 and 25.452 at 0.0125."""
    rows = [row(M, name, 0.0, interval=(-12.706, 12.706), n=n) for name in "ab"]
    policy = Policy.model_validate({"rules": [{"metric": M, "max": 20}], "family": "holm"})
    findings = gate(make_report(*rows), policy).findings
    assert all("corrected to [-25.5, 25.5]" in finding.message for finding in findings)


def test_a_correction_of_one_end_is_told() -> None:
    measured = row(M, "a", 0.0, interval=(-1.0, 1.0))
    case = Case(1, Rule(metric=M, max=2.0), measured, (-1.0, 1.2))
    assert case.words == "0 [-1, 1], corrected to [-1, 1.20], is within the max of 2"


# One-sided level 0.025: thresholds for four claims are 0.00625, 0.00833, 0.0125, 0.025.
BY_HAND: list[tuple[list[float], list[bool]]] = [
    ([0.02], [True]),
    ([0.03], [False]),
    ([0.006, 0.008, 0.012, 0.024], [True, True, True, True]),
    ([0.007, 0.008, 0.012, 0.024], [False, False, False, False]),
    ([0.024, 0.001, 0.012, 0.008], [True, True, True, True]),
    ([0.001, 0.009, 0.011, 0.012], [True, False, False, False]),
    ([0.012, 0.013, 0.001, 0.002], [True, True, True, True]),
    ([0.5, 0.001], [False, True]),
]


@pytest.mark.parametrize(("p_values", "expected"), BY_HAND, ids=str)
def test_step_down_by_hand(p_values: list[float], expected: list[bool]) -> None:
    assert granted([claim(p) for p in p_values]) == expected


def test_ends_lie_at_the_confidence_of_their_step() -> None:
    ends = corrected_ends([claim(0.009), claim(0.001), claim(0.011)])
    # 0.001 ≤ α/3 is granted; 0.009 ≤ α/2 is granted; 0.011 ≤ α is granted.
    assert ends == pytest.approx([Z(1 - 0.025 / 2), Z(1 - 0.025 / 3), Z(1 - 0.025)])
    ends = corrected_ends([claim(0.02), claim(0.001), claim(0.015)])
    # 0.015 > α/2 is refused, and 0.02 is judged at the same α/2 although 0.02 ≤ α.
    assert ends == pytest.approx([Z(1 - 0.025 / 2), Z(1 - 0.025 / 3), Z(1 - 0.025 / 2)])


def test_the_strictest_confidence_holds_for_the_family() -> None:
    claims = [claim(0.004, 0.99), claim(0.004, 0.90)]
    assert corrected_ends(claims) == pytest.approx([Z(1 - 0.005 / 2)] * 2)
    assert granted(claims) == [False, False]


def test_one_claim_is_not_corrected() -> None:
    alone = claim(0.02)
    assert corrected_ends([alone]) == pytest.approx([alone.upper])
    assert corrected_ends([]) == []


def test_without_width_there_is_nothing_to_correct() -> None:
    sure = [Claim(limit=1.0, upper=u, half_width=0.0, confidence=0.95) for u in (0.5, 1.0, 1.5)]
    assert corrected_ends(sure) == [0.5, 1.0, 1.5]
    assert [claim.p_value for claim in sure] == [0.0, 0.0, 1.0]


def test_a_false_claim_is_rarely_granted_among_many() -> None:
    """All limits exceeded by a hair: some claim passes with probability α, not m·α."""
    trials, m = 2000, 10
    draws = np.random.default_rng(0).normal(size=(trials, m))
    half = Z(0.975)
    wrong = plain = 0
    for estimates in draws:
        claims = [
            Claim(limit=0.0, upper=float(x) + half, half_width=half, confidence=0.95)
            for x in estimates
        ]
        wrong += any(granted(claims))
        plain += any(c.upper <= 0 for c in claims)
    assert plain / trials == pytest.approx(1 - 0.975**m, abs=0.03)
    # independent claims at α/m each: 1 − (1 − α/m)^m
    assert wrong / trials == pytest.approx(1 - (1 - 0.025 / m) ** m, abs=0.012)


def judged_outcomes(family: str, *limits: dict[str, float]) -> list[str]:
    rows = [
        row(M, "a", 0.0, interval=(-1.96, 1.96)),
        row(M, "b", 0.0, interval=(-1.96, 1.96)),
        row(M, "c", 1.9),
        infinite_row(M, "d"),
    ]
    layers = [{"layers": name, **limit} for name, limit in zip("abcd", limits, strict=True)]
    policy = Policy.model_validate(
        {"rules": [{"metric": M, **entry} for entry in layers], "family": family}
    )
    return [finding.outcome for finding in gate(make_report(*rows), policy).findings]


def test_the_gate_corrects_rows_with_intervals_in_both_directions() -> None:
    # Two claims with an interval: the nearer limit keeps z = 1.96, the farther needs 2.24.
    for limit, corrected in ((2.3, "passed"), (2.2, "unclear")):
        limits = ({"max": limit}, {"min": -2.0}, {"max": 2.0}, {"max": 2.0})
        assert judged_outcomes("none", *limits) == ["passed", "passed", "passed", "failed"]
        assert judged_outcomes("holm", *limits) == [corrected, corrected, "passed", "failed"]


def test_what_is_shown_is_corrected_too() -> None:
    # Of two claims "beyond", the nearer needs z = 1.96 once the farther is granted at 2.24.
    for limit, corrected in ((-2.3, "failed"), (-2.2, "unclear")):
        limits = ({"max": limit}, {"min": 2.0}, {"max": 2.0}, {"max": 2.0})
        assert judged_outcomes("none", *limits) == ["failed", "failed", "passed", "failed"]
        assert judged_outcomes("holm", *limits) == [corrected, corrected, "passed", "failed"]


def test_what_is_granted_one_way_makes_the_other_way_no_easier() -> None:
    """Each direction is a family of all rows: what passes surely loosens nothing for what fails."""
    limits = ({"max": 99.0}, {"max": -2.0}, {"max": 2.0}, {"max": 2.0})
    assert judged_outcomes("none", *limits)[1] == "failed"
    assert judged_outcomes("holm", *limits)[1] == "unclear"


def wrong_verdicts(
    family: str, effects: Sequence[float], correlation: float, trials: int = 700
) -> float:
    """Share of reports with any false verdict; an effect is the metric less the limit, in sd.

    Where the metric equals the limit, either verdict counts as false.
    """
    generator = np.random.default_rng(0)
    rule = Rule(metric=M, max=0.0)
    wrong = 0
    for _ in range(trials):
        shared = generator.normal()
        own = generator.normal(size=len(effects))
        estimates = np.asarray(effects) + correlation**0.5 * shared + (1 - correlation) ** 0.5 * own
        cases = []
        for i, x in enumerate(map(float, estimates)):
            ends = x - Z(0.975), x + Z(0.975)
            cases.append(Case(1, rule, row(M, str(i), x, interval=ends), ends))
        judged = correct(cases) if family == "holm" else cases
        wrong += any(
            case.outcome == ("failed" if effect < 0 else "passed")
            or (effect == 0 and case.outcome != "unclear")
            for case, effect in zip(judged, effects, strict=True)
        )
    return wrong / trials


NULLS = [0.0] * 12
MIXED = [6.0] * 4 + [-6.0] * 4 + [1e-9] * 4 + [-1e-9] * 4 + [0.0] * 4


@pytest.mark.slow
def test_a_false_verdict_is_rare_among_many_rows() -> None:
    """Both directions together: independent rows at α/m each give 1 - (1 - 0.05/m)^m."""
    assert wrong_verdicts("none", NULLS, 0) == pytest.approx(1 - 0.95**12, abs=0.055)
    assert wrong_verdicts("holm", NULLS, 0) == pytest.approx(0.049, abs=0.025)


@pytest.mark.slow
@pytest.mark.parametrize("effects", [NULLS, MIXED], ids=["null", "mixed"])
@pytest.mark.parametrize("correlation", [0.3, 0.9])
def test_dependence_makes_false_verdicts_no_more_likely(
    effects: list[float], correlation: float
) -> None:
    assert wrong_verdicts("none", effects, correlation) > 0.08
    assert wrong_verdicts("holm", effects, correlation) < 0.075


def test_a_clipped_estimate_is_not_taken_for_a_sharp_one() -> None:
    """The point max(0, mean) lies near the upper end; half the width counts, not that distance."""
    clipped = row(M, "a", 0.0, interval=(-0.3, 0.1))
    rules = [{"metric": M, "max": 0.115}, {"metric": M, "min": -9}]
    policy = Policy.model_validate({"rules": rules, "family": "holm"})
    first, second = gate(make_report(clipped), policy).findings
    # 0.1 + 0.2·(2.2414/1.96 − 1) = 0.1287 at two claims; refused at α, since 0.115 > 0.1 is not.
    assert (first.outcome, second.outcome) == ("passed", "passed")
    tight = policy.model_copy(update={"rules": (policy.rules[0], policy.rules[0])})
    findings = gate(make_report(clipped), tight).findings
    assert [f.outcome for f in findings] == ["unclear", "unclear"]
    # The lower end: half-width 0.3, -0.3·2.2414/1.96 = -0.343.
    words = "0 [-0.300, 0.100], corrected to [-0.343, 0.129], neither shows nor excludes a value"
    assert findings[0].message.startswith(words)


def test_an_interval_without_a_confidence_is_a_bound_and_stays() -> None:
    bound = row(M, "a", 0.0, interval=(-1.96, 1.96), confidence=None)
    rules = [{"metric": M, "max": 2.0}] * 5
    judged = gate(make_report(bound), Policy.model_validate({"rules": rules, "family": "holm"}))
    assert [f.outcome for f in judged.findings] == ["passed"] * 5


def test_ignored_rows_leave_the_family() -> None:
    rows = [row(M, name, 0.0, interval=(-1.96, 1.96)) for name in "ab"]
    rules = [{"metric": M, "max": 2.0}]
    fields = {"rules": rules, "family": "holm"}
    both = gate(make_report(*rows), Policy.model_validate(fields))
    assert [f.outcome for f in both.findings] == ["unclear", "unclear"]
    ignore = [{"metric": M, "layers": "b", "reason": "accepted"}]
    one = gate(make_report(*rows), Policy.model_validate({**fields, "ignore": ignore}))
    assert [f.outcome for f in one.findings] == ["passed", "passed"]


@pytest.mark.parametrize("family", ["none", "holm"])
def test_an_interval_without_an_upper_end_is_shown_or_open_and_never_within(family: str) -> None:
    """Of five claims the correction moves the lower end by its own distance from the value."""
    open_ended = row(M, "a", 3.0, interval=(1.04, UNBOUNDED))
    limits = (0.2, 1.0, 2.0, 1e300)
    rules = [{"metric": M, "max": limit} for limit in limits] + [{"metric": M, "min": 9.0}]
    judged = gate(
        make_report(open_ended), Policy.model_validate({"rules": rules, "family": family})
    )
    second = "failed" if family == "none" else "unclear"
    outcomes = [finding.outcome for finding in judged.findings]
    assert outcomes == ["failed", second, "unclear", "unclear", "unclear"]
    assert Report.model_validate_json(judged.to_json()) == judged
