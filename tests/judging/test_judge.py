"""What each rule of the gate means, one case each."""

from datetime import date
from typing import Any

import pytest
from pydantic import ValidationError
from report_builder import failed_row, fc1, infinite_row, make_report, row, skipped_row

from gradaudit.audits import Metric
from gradaudit.judging import Policy, default_policy, fails, gate, passed
from gradaudit.report import RISKIEST_BY, Finding, Measurement, Report

M = "leak.bits"
TODAY = date(2026, 5, 1)
REMARK = {"imprecise": True, "imprecise_because": "12 disjoint batches for a value"}


def policy(*rules: dict[str, Any], **fields: Any) -> Policy:
    return Policy.model_validate({"rules": list(rules), **fields})


def judged_row(measured: Measurement, rule: dict[str, Any], **fields: Any) -> Finding:
    """The finding of a single rule about a single row."""
    (finding,) = gate(make_report(measured), policy(rule, **fields), today=TODAY).findings
    return finding


def outcomes(report: Report) -> list[tuple[str | None, str]]:
    return [(finding.layer, finding.outcome) for finding in report.findings]


ONE_ROW: list[tuple[str, Measurement, dict[str, Any], str]] = [
    ("value below max", fc1(0.9), {"max": 1}, "passed"),
    ("value at max", fc1(1.0), {"max": 1}, "passed"),
    ("value above max", fc1(1.1), {"max": 1}, "failed"),
    ("all above max", fc1(1.2, 1.01, 9), {"max": 1}, "failed"),
    ("max inside, value within", fc1(0.9, 0.7, 1.1), {"max": 1}, "unclear"),
    ("max inside, value beyond", fc1(1.1, 0.9, 9), {"max": 1}, "unclear"),
    ("max at the lower end", fc1(1.1, 1, 9), {"max": 1}, "unclear"),
    ("upper end below max", fc1(0.9, -9, 1), {"max": 1}, "passed"),
    ("value above min", fc1(1.1), {"min": 1}, "passed"),
    ("value at min", fc1(1.0), {"min": 1}, "passed"),
    ("value below min", fc1(0.9), {"min": 1}, "failed"),
    ("all below min", fc1(0.9, -9, 0.99), {"min": 1}, "failed"),
    ("min inside", fc1(1.1, 0.9, 9), {"min": 1}, "unclear"),
    ("min at the upper end", fc1(0.9, 0.5, 1), {"min": 1}, "unclear"),
    ("lower end above min", fc1(1.5, 1, 9), {"min": 1}, "passed"),
    ("infinite above every max", infinite_row(M, "fc1"), {"max": 1e308}, "failed"),
    (
        "infinite above a finite interval",
        infinite_row(M, "fc1", interval=(0.0, 0.5)),
        {"max": 1},
        "failed",
    ),
    ("infinite above every min", infinite_row(M, "fc1"), {"min": 1e308}, "passed"),
    ("remarked, within", fc1(0.1, 0, 0.2, details=REMARK), {"max": 1}, "passed"),
    ("remarked, beyond", fc1(9.0, 8, 10, details=REMARK), {"max": 1}, "failed"),
    ("remarked, without width", fc1(0.0, details=REMARK), {"max": 1}, "passed"),
    ("not applicable", skipped_row(M, "fc1", "no rank"), {"max": 1}, "not-applicable"),
    ("broken", failed_row(M, "fc1", "NaN"), {"max": 1}, "unmeasured"),
    ("negative limit", fc1(-0.5), {"max": -1}, "failed"),
    ("zero min", fc1(-0.5), {"min": 0}, "failed"),
]


@pytest.mark.parametrize(
    ("measurement", "limit", "outcome"), [c[1:] for c in ONE_ROW], ids=[c[0] for c in ONE_ROW]
)
@pytest.mark.parametrize("level", ["error", "warning"])
def test_one_row_against_one_limit(
    measurement: Measurement, limit: dict[str, float], outcome: str, level: str
) -> None:
    report = make_report(measurement, row("rank.deficit", "fc1", 1.0))
    judged = gate(report, policy({"metric": M, "level": level, **limit}))
    assert outcomes(judged) == [("fc1", outcome)]
    assert fails(judged) == (level == "error" and outcome in ("failed", "unmeasured"))
    strict = gate(report, policy({"metric": M, "level": level, **limit}), strict=True)
    assert outcomes(strict) == outcomes(judged)
    assert fails(strict) == (level == "error" and outcome not in ("passed", "not-applicable"))


SETTINGS: list[tuple[str | None, str | None, str]] = [
    (None, None, "warn"),
    ("pass", None, "pass"),
    ("fail", None, "fail"),
    ("fail", "pass", "pass"),
    ("pass", "fail", "fail"),
]


@pytest.mark.parametrize("metric", ["mse_share", "nats", "rero"])
@pytest.mark.parametrize("limit", [{"min": 0.5}, {"max": 0.5}], ids=["min", "max"])
def test_a_guarantee_that_nothing_gives_is_not_kept(metric: str, limit: dict[str, float]) -> None:
    without = skipped_row(f"floor.{metric}", "fc1", "no noise")
    judged = gate(
        make_report(without, row("rank.deficit", "fc1", 1.0)),
        policy({"metric": f"floor.{metric}", **limit}),
    )
    assert outcomes(judged) == [("fc1", "unmeasured")]
    assert not passed(judged)


@pytest.mark.parametrize(
    ("said", "effect"),
    [({}, "fail"), ({"unclear": "warn"}, "warn"), ({"unclear": "pass"}, "pass")],
    ids=["nothing", "warn", "pass"],
)
def test_a_guarantee_must_be_shown_unless_the_policy_says_otherwise(
    said: dict[str, Any], effect: str
) -> None:
    near = row("floor.mse_share", "fc1", 0.5, interval=(0.4, 0.7))
    rule = {"metric": "floor.mse_share", "min": 0.45}
    for finding in (judged_row(near, rule, **said), judged_row(near, rule | said)):
        assert (finding.outcome, finding.unclear) == ("unclear", effect)


def test_a_row_that_is_not_there_is_missed_for_the_reason_of_the_others() -> None:
    without = skipped_row("floor.mse_share", "fc1", "no noise")
    rules = policy({"metric": "floor.mse_share", "layers": "", "min": 0.5})
    (finding,) = gate(make_report(without, row("rank.deficit", "fc1", 1.0)), rules).findings
    assert finding.message == "no row of a layer that matches '': no noise"


@pytest.mark.parametrize(("of_policy", "of_rule", "effect"), SETTINGS)
def test_what_becomes_of_the_unclear(
    of_policy: str | None, of_rule: str | None, effect: str
) -> None:
    rule = {"metric": M, "max": 1, **({"unclear": of_rule} if of_rule else {})}
    rules = policy(rule, **({"unclear": of_policy} if of_policy else {}))
    report = make_report(fc1(0.5, 0, 2))
    (finding,) = gate(report, rules).findings
    assert (finding.outcome, finding.unclear) == ("unclear", effect)
    assert passed(gate(report, rules)) == (effect == "pass")
    assert fails(gate(report, rules)) == (effect == "fail")
    assert fails(gate(report, rules, strict=True))


def test_a_headline_that_stands_for_several_is_judged_by_each() -> None:
    """The riskiest value shows nothing here, and the next one does."""
    wide = fc1(1.6, 0.5, 2.7, variant={"leak": "b"})
    sure = fc1(1.5, 1.3, 1.7, variant={"leak": "a"})
    low = fc1(0.1, 0, 0.2, variant={"leak": "c"})
    away = skipped_row(M, "fc1", "no", variant={"leak": "d"})
    deeper = fc1(9, variant={"leak": "a", "round": 1})
    headline = wide.model_copy(update={"variant": {}, "details": {RISKIEST_BY: ["leak"]}})
    judged = gate(
        make_report(headline, sure, wide, low, away, deeper), policy({"metric": M, "max": 1})
    )
    assert [(f.variant["leak"], f.outcome) for f in judged.findings] == [
        ("a", "failed"),
        ("b", "unclear"),
        ("c", "passed"),
    ]


def test_headlines_of_headlines_are_judged_by_what_they_stand_for() -> None:
    by_round = {RISKIEST_BY: ["round"]}
    rows = [
        fc1(3, details={RISKIEST_BY: ["leak"]}),
        fc1(3, variant={"leak": "a"}, details=by_round),
        fc1(2, variant={"leak": "b"}),
        fc1(3, variant={"leak": "a", "round": 1}),
        fc1(1, variant={"leak": "a", "round": 2}),
    ]
    judged = gate(make_report(*rows), policy({"metric": M, "max": 9}))
    assert [f.variant for f in judged.findings] == [rows[i].variant for i in (3, 4, 2)]


MATCHING: list[tuple[str, dict[str, Any], list[str]]] = [
    ("all layers and the model", {}, ["conv1", "fc1", "fc2", "(none)"]),
    ("star", {"layers": "*"}, ["conv1", "fc1", "fc2", "(none)"]),
    ("layers only", {"layers": "?*"}, ["conv1", "fc1", "fc2"]),
    ("model only", {"layers": ""}, ["(none)"]),
    ("a glob", {"layers": "fc*"}, ["fc1", "fc2"]),
    ("a list", {"layers": ["conv1", "fc2"]}, ["conv1", "fc2"]),
    ("case counts", {"layers": ["FC1", "fc1"]}, ["(none)", "fc1"]),
]


@pytest.mark.parametrize(
    ("where", "expected"), [c[1:] for c in MATCHING], ids=[c[0] for c in MATCHING]
)
def test_layers_are_matched_by_globs(where: dict[str, Any], expected: list[str]) -> None:
    report = make_report(*(row(M, layer, 0.5) for layer in ("conv1", "fc1", "fc2", None)))
    judged = gate(report, policy({"metric": M, "max": 1, **where}))
    assert [layer or "(none)" for layer, _ in outcomes(judged)] == expected


def test_a_metric_may_be_a_glob() -> None:
    report = make_report(
        row("leak.bits", "fc1", 1), row("leak.note", "fc1", 9), row("rank.x", "fc1", 9)
    )
    judged = gate(report, policy({"metric": "leak.*", "max": 5}))
    assert [(f.metric, f.outcome) for f in judged.findings] == [
        ("leak.bits", "passed"),
        ("leak.note", "failed"),
    ]


UNMET: list[tuple[str, dict[str, Any], str]] = [
    ("metric", {"metric": "leak.bit"}, "no row of this metric; did you mean 'leak.bits'?"),
    ("far metric", {"metric": "zzz.q"}, "no row of this metric"),
    (
        "layer",
        {"metric": M, "layers": "fc11"},
        "no row of a layer that matches 'fc11'; did you mean 'fc1'?",
    ),
    ("model row", {"metric": M, "layers": ""}, "no row of a layer that matches ''"),
    ("variant", {"metric": M, "variant": {"round": 9}}, "no row of this variant"),
    ("headline", {"metric": "leak.note"}, "no headline row; name a variant"),
]


@pytest.mark.parametrize(("rule", "message"), [c[1:] for c in UNMET], ids=[c[0] for c in UNMET])
def test_a_rule_that_meets_no_row_fails(rule: dict[str, Any], message: str) -> None:
    report = make_report(fc1(0.1), row("leak.note", "fc1", 1, variant={"round": 1}))
    judged = gate(report, policy({"max": 1, **rule}))
    assert [(f.outcome, f.message) for f in judged.findings] == [("unmeasured", message)]
    assert not passed(judged)


def test_no_other_name_is_proposed_for_a_metric_that_exists(two_audits: None) -> None:
    report = make_report(row("leak.note", "fc1", 1))
    (found,) = gate(report, policy({"metric": "leak.total", "max": 1})).findings
    assert found.message == "no row of this metric"


def test_every_glob_of_a_list_must_meet_a_row() -> None:
    judged = gate(
        make_report(fc1(0.1)), policy({"metric": M, "layers": ["conv1", "fc*"], "max": 1})
    )
    assert outcomes(judged) == [(None, "unmeasured"), ("fc1", "passed")]
    assert not passed(judged)


@pytest.mark.parametrize(("glob", "hidden"), [("fc2", True), ("fc*", False), ("*", False)])
def test_a_glob_that_only_matches_hidden_layers_is_not_applicable(glob: str, hidden: bool) -> None:
    report = make_report(row("leak.total", None, 0.0), layers=(("fc1", "Linear", 8192),))
    report = report.model_copy(update={"provenance": {"hidden": ["fc2"]}})
    judged = gate(report, policy({"metric": M, "layers": glob, "max": 1}))
    assert outcomes(judged) == [(None, "not-applicable" if hidden else "unmeasured")]
    assert passed(judged) == hidden


VARIANTS: list[tuple[dict[str, Any], list[float]]] = [
    ({}, [1.0]),
    ({"round": 1}, [2.0]),
    ({"round": 2}, [3.0, 4.0]),
    ({"round": 2.0}, [3.0, 4.0]),
    ({"round": 2, "method": "dlg"}, [4.0]),
    ({"method": "d*"}, [4.0]),
    ({"round": "*"}, [2.0, 3.0, 4.0]),
    ({"round": True}, []),
]


@pytest.mark.parametrize(("wanted", "values"), VARIANTS, ids=str)
def test_only_headlines_are_judged_unless_a_variant_is_named(
    wanted: dict[str, Any], values: list[float]
) -> None:
    variants: list[dict[str, Any]] = [{}, {"round": 1}, {"round": 2}, {"round": 2, "method": "dlg"}]
    rows = [row(M, "fc1", i, variant=v) for i, v in enumerate(variants, start=1)]
    judged = gate(make_report(*rows), policy({"metric": M, "max": 9, "variant": wanted}))
    met = [f.variant for f in judged.findings if f.outcome == "passed"]
    assert [variants.index(v) + 1 for v in met] == values


NOTHING: list[tuple[str, list[Measurement]]] = [
    ("no rows", []),
    ("all skipped", [skipped_row(M, "fc1", "no")]),
    ("all failed", [failed_row(M, "fc1", "no")]),
]


@pytest.mark.parametrize("rows", [c[1] for c in NOTHING], ids=[c[0] for c in NOTHING])
@pytest.mark.parametrize("rules", [[{"metric": M, "max": 1, "level": "warning"}], None])
def test_a_report_without_a_measurement_never_passes(
    rows: list[Measurement], rules: list[dict[str, Any]] | None, two_audits: None
) -> None:
    judged = gate(make_report(*rows), policy(*rules) if rules else None)
    assert judged.findings[0].rule == 0
    assert not passed(judged)


def test_a_report_that_no_default_limit_speaks_of_never_passes(two_audits: None) -> None:
    judged = gate(make_report(row("rank.deficit", "fc1", 1.0)))
    assert [f.message for f in judged.findings] == [
        "the policy has no rule for what this report holds"
    ]
    assert not passed(judged)


def test_a_report_that_was_not_judged_has_not_passed() -> None:
    assert not passed(make_report(fc1(0.1)))


IGNORES: list[tuple[str, dict[str, Any], str, str]] = [
    ("without end", {}, "ignored", "3 exceeds the max of 1; ignored: accepted"),
    (
        "through its day",
        {"until": "2026-05-01"},
        "ignored",
        "3 exceeds the max of 1; ignored until 2026-05-01: accepted",
    ),
    (
        "over",
        {"until": "2026-04-30"},
        "failed",
        "3 exceeds the max of 1; no longer ignored since 2026-05-01: accepted",
    ),
    ("other layer", {"layers": "conv*"}, "failed", "3 exceeds the max of 1"),
    ("other metric", {"metric": "rank.*"}, "failed", "3 exceeds the max of 1"),
]


@pytest.mark.parametrize(
    ("fields", "outcome", "message"), [c[1:] for c in IGNORES], ids=[c[0] for c in IGNORES]
)
def test_ignores(fields: dict[str, Any], outcome: str, message: str) -> None:
    ignore = {"metric": M, "layers": "fc*", "reason": "accepted", **fields}
    finding = judged_row(fc1(3), {"metric": M, "max": 1}, ignore=[ignore])
    assert (finding.outcome, finding.message) == (outcome, message)


def test_an_ignore_in_force_counts_beside_one_that_is_over() -> None:
    over = {"metric": M, "reason": "old", "until": "2026-01-01"}
    ignores = [over, {"metric": M, "reason": "new"}]
    finding = judged_row(fc1(3), {"metric": M, "max": 1}, ignore=ignores)
    assert finding.message == "3 exceeds the max of 1; ignored: new"


def test_what_could_not_be_measured_cannot_be_ignored() -> None:
    judged = gate(
        make_report(failed_row(M, "fc1", "NaN"), row("rank.x", "fc1", 1)),
        policy({"metric": M, "max": 1}, ignore=[{"metric": "*.*", "reason": "all"}]),
    )
    assert outcomes(judged) == [("fc1", "unmeasured")]


def test_an_ignore_leaves_what_passes_alone() -> None:
    accepted = [{"metric": M, "reason": "accepted"}]
    finding = judged_row(fc1(0.5), {"metric": M, "max": 1}, ignore=accepted)
    assert (finding.outcome, finding.message) == ("passed", "0.500 is within the max of 1")


def test_a_lower_bound_within_a_max_says_what_it_does_not_show() -> None:
    bound = row("dp-audit.epsilon_lower", None, 0.5, n=1000)
    within, beyond = (judged_row(bound, {"metric": bound.id, "max": most}) for most in (1, 0.1))
    assert within.outcome == "passed"
    assert within.message == (
        "0.500 is within the max of 1; it is a lower bound, and the truth may be larger"
    )
    assert beyond.message == "0.500 exceeds the max of 0.1"


WEAK = {"learners": {"logistic": "linear"}}
PLAYED = Metric(id="played", title="Played", stronger="--family forest")
MESSAGES: list[tuple[Measurement, dict[str, float], str]] = [
    (
        row(M, "l", 0.734, interval=(0.71, 0.78)),
        {"max": 0.7},
        "0.734 [0.710, 0.780] exceeds the max of 0.7",
    ),
    (
        row(M, "l", 0.75, interval=(0.65, 0.85), n=400),
        {"max": 0.7},
        "0.750 [0.650, 0.850] neither shows nor excludes a value above the max of 0.7; "
        "about 4 times as many records or trials would settle it",
    ),
    (
        row("leak.counted", "l", 0.75, interval=(0.65, 0.85), n=400),
        {"max": 0.7},
        "0.750 [0.650, 0.850] neither shows nor excludes a value above the max of 0.7; "
        "about 1,600 releases instead of 400 would settle it",
    ),
    (
        row(M, "l", 0.7, interval=(0.65, 0.9)),
        {"min": 0.7},
        "0.700 [0.650, 0.900] neither shows nor excludes a value below the min of 0.7; "
        "the value lies at the limit; while it does, more records or trials will not settle it",
    ),
    (
        row("leak.played", "l", 0.75, interval=(0.65, 0.85), n=400),
        {"max": 0.7},
        "0.750 [0.650, 0.850] neither shows nor excludes a value above the max of 0.7; about 4 "
        "times as many records or trials would settle it, or a stronger adversary may (--family "
        "forest)",
    ),
    (
        row("leak.played", "l", 0.7, interval=(0.65, 0.9)),
        {"max": 0.7},
        "0.700 [0.650, 0.900] neither shows nor excludes a value above the max of 0.7; the value "
        "lies at the limit; a stronger adversary may settle it (--family forest)",
    ),
    (
        row("leak.played", "l", 0.7, interval=(0.65, 0.9)),
        {"max": 0.95},
        "0.700 [0.650, 0.900] is within the max of 0.95; it is what this adversary got, and a "
        "stronger one may get more",
    ),
    (
        row("leak.played", "l", 0.7, interval=(0.65, 0.9), details=WEAK),
        {"max": 0.95},
        "0.700 [0.650, 0.900] does not exclude a value above the max of 0.95; its adversary is "
        "linear, and a stronger one may get more (--family forest)",
    ),
    (row(M, "l", 0.714), {"min": 0.7}, "0.714 reaches the min of 0.7"),
    (row(M, "l", 0.699), {"min": 0.7}, "0.699 is below the min of 0.7"),
    (row(M, "l", 10.004), {"max": 10}, "10.0 exceeds the max of 10 by 0.004"),
    (row(M, "l", 10.004), {"max": 10.0002}, "10.0 exceeds the max of 10.0002 by 0.0038"),
    (infinite_row(M, "l"), {"max": 10}, "infinite exceeds the max of 10"),
]


@pytest.mark.parametrize(
    ("measurement", "limit", "message"), MESSAGES, ids=[m[2] for m in MESSAGES]
)
def test_messages(
    measurement: Measurement,
    limit: dict[str, float],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {
        "leak.counted": Metric(id="counted", title="Counted", counts="releases"),
        "leak.played": PLAYED,
    }
    monkeypatch.setattr("gradaudit.judging.case.known_metrics", lambda: known)
    assert judged_row(measurement, {"metric": measurement.id, **limit}).message == message


LINEAR_ONLY: list[tuple[dict[str, str], float, str]] = [
    ({"logistic": "linear"}, 0.3, "unclear"),
    ({"logistic": "linear", "discriminant": "linear"}, 0.3, "unclear"),
    ({"logistic": "linear"}, 0.9, "failed"),
    ({"logistic": "linear", "forest": "50 trees"}, 0.3, "passed"),
    ({"forest": "50 trees"}, 0.3, "passed"),
    ({}, 0.3, "passed"),
]


@pytest.mark.parametrize(("learners", "value", "outcome"), LINEAR_ONLY)
def test_a_linear_adversary_shows_no_value_within_a_limit(
    learners: dict[str, str], value: float, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradaudit.judging.case.known_metrics", lambda: {"leak.played": PLAYED})
    details: dict[str, Any] = {"learners": learners}
    for sign, limit in ((1, {"max": 0.5}), (-1, {"min": -0.5})):
        ends = sorted((sign * (value - 0.1), sign * (value + 0.1)))
        played, other = (
            row(name, "l", sign * value, interval=tuple(ends), details=details)
            for name in ("leak.played", M)
        )
        finding = judged_row(played, {"metric": "leak.*", **limit})
        assert (finding.outcome, finding.times) == (outcome, None)
        finding = judged_row(other, {"metric": M, **limit})
        assert finding.outcome == ("passed" if outcome == "unclear" else outcome)


TIMES: list[tuple[float, tuple[float, float], float | None]] = [
    (0.5, (0.0, 1.5), 4.0),  # upper half-width 1, distance 0.5
    (1.5, (0.5, 9.0), 4.0),  # lower half-width 1, distance 0.5; the other side does not matter
    (0.91, (0.0, 1.80), 98.0),
    (0.92, (0.0, 1.92), None),  # would take 156 times as many
    (1.0, (0.0, 2.0), None),
]


@pytest.mark.parametrize(("value", "interval", "times"), TIMES)
def test_how_much_more_would_settle_it(
    value: float, interval: tuple[float, float], times: float | None
) -> None:
    low, high = interval
    assert judged_row(fc1(value, low, high), {"metric": M, "max": 1}).times == times
    assert judged_row(fc1(-value, -high, -low), {"metric": M, "min": -1}).times == times


@pytest.mark.parametrize(
    ("n", "limit", "times"), [(8, 0.1, 36 / 8), (2, 0.1, 18), (8, 0.001, None)]
)
def test_of_none_the_exact_interval_says_how_many_more_settle_it(
    n: int, limit: float, times: float | None
) -> None:
    """0 of n reaches up to 1 - .025^(1/n): the least n with an end within the limit."""
    found = judged_row(fc1(0, 0, 1 - 0.025 ** (1 / n)), {"metric": M, "max": limit})
    assert found.times == (None if times is None else pytest.approx(times))


def test_a_remedy_never_asks_for_more_records_than_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Metric(id="bits", title="bits", counts="records", riskier="higher")
    monkeypatch.setattr("gradaudit.judging.case.known_metrics", lambda: {M: counted})
    report = make_report(row(M, "l", 0.75, interval=(0.65, 0.85), n=400), data={"records": 1000})
    (found,) = gate(report, Policy.model_validate({"rules": [{"metric": M, "max": 0.7}]})).findings
    assert found.message.endswith(
        "1,600 records instead of 400 would settle it, and the data has 1,000"
    )


def test_so_much_more_settles_it() -> None:
    """The half-width shrinks with the root of the number: at ``times`` the limit is its end."""
    value, (low, high) = 0.8, (0.3, 1.3)
    rule = {"metric": M, "max": 1}
    times = judged_row(fc1(value, low, high), rule).times
    assert times is not None
    for share, outcome in ((0.95, "unclear"), (1.1, "passed")):
        half = (high - low) / 2 / (share * times) ** 0.5
        assert judged_row(fc1(value, value - half, value + half), rule).outcome == outcome


@pytest.mark.parametrize("until", [None, "2026-05-01", "2026-04-30"])
def test_an_ignore_lets_the_unclear_pass_and_leaves_it_unclear(until: str | None) -> None:
    ignore = {"metric": M, "reason": "accepted", **({"until": until} if until else {})}
    judged = gate(
        make_report(fc1(0.5, 0, 2)),
        policy({"metric": M, "max": 1}, ignore=[ignore], unclear="fail"),
        today=TODAY,
    )
    over = until == "2026-04-30"
    assert [(f.outcome, f.unclear) for f in judged.findings] == [
        ("unclear", "fail" if over else "pass")
    ]
    assert passed(judged) is not over
    assert "accepted" in judged.findings[0].message


def test_findings_name_the_rule_and_follow_the_order_of_rules_and_rows() -> None:
    report = make_report(row(M, "fc2", 3.0), fc1(0.5), skipped_row(M, "conv1", "x"))
    judged = gate(report, policy({"metric": M, "min": 0}, {"metric": M, "max": 1}))
    assert [(f.rule, f.layer, f.max, f.min) for f in judged.findings] == [
        (rule, layer, limit, 0.0 if limit is None else None)
        for rule, limit in ((1, None), (2, 1.0))
        for layer in ("fc2", "fc1", "conv1")
    ]
    assert report.findings == []
    assert judged.measurements == report.measurements


def test_judging_again_replaces_the_findings() -> None:
    report = make_report(fc1(0.5))
    strict, mild = policy({"metric": M, "max": 0}), policy({"metric": M, "max": 1})
    assert gate(gate(report, strict), mild) == gate(report, mild)


def test_the_default_policy_is_what_the_metrics_declare(two_audits: None) -> None:
    rules = [(r.metric, r.max, r.min, r.level) for r in default_policy().rules]
    assert rules == [
        ("leak.bits", 2.0, None, "error"),
        ("leak.bits", 1.0, None, "warning"),
        ("leak.effort", None, 10.0, "warning"),
        ("leak.total", 0.0, None, "error"),
    ]


def test_the_default_policy_asks_only_for_what_the_report_holds(two_audits: None) -> None:
    report = make_report(
        skipped_row("leak.effort", "fc1", "no"), row("leak.bits", "fc1", 1, variant={"round": 1})
    )
    assert {rule.metric for rule in default_policy(report).rules} == {"leak.effort"}


@pytest.mark.parametrize(
    "fields",
    [
        {"rule": 1, "outcome": "failed"},
        {"rule": 1, "outcome": "failed", "max": 1.0, "min": 0.0},
        {"rule": 0, "outcome": "passed"},
        {"rule": 1, "outcome": "unclear", "max": 1.0},
        {"rule": 1, "outcome": "passed", "max": 1.0, "unclear": "warn"},
    ],
)
def test_a_finding_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"either max or min|must be unmeas|an unclear"):
        Finding(metric=M, level="error", message="m", **fields)
