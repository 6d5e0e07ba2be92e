"""The word that each finding makes of a report, and whether the gate fails (docs/policies.md)."""

from itertools import combinations
from typing import Any

import pytest
from report_builder import failed_row, infinite_row, make_report, row, skipped_row

from gradaudit.judging import Policy, fails, gate, passed, verdict
from gradaudit.report import Measurement, Report

pytestmark = pytest.mark.usefixtures("two_audits")

WITHIN = row("rank.deficit", "fc2", 0.5)
"""A row within the limit of an error rule, beside which each case stands."""
RANK = "rank.deficit"
EFFORT = "leak.effort"
"""Metrics that answer no question about an attribute."""

UNCLEAR = row(EFFORT, "fc1", 0.9, interval=(0.5, 1.5))
IGNORE = {"ignore": [{"metric": EFFORT, "reason": "accepted"}]}
Case = tuple[list[Measurement], dict[str, Any], str, bool]

CASES: dict[str, Case] = {
    "within": ([row(EFFORT, "fc1", 0.5)], {}, "passed", False),
    "beyond": ([row(EFFORT, "fc1", 1.5)], {}, "failed", True),
    "infinite": ([infinite_row(EFFORT, "fc1")], {}, "failed", True),
    "ignored": ([row(EFFORT, "fc1", 1.5)], IGNORE, "passed", False),
    "unclear, ignored": ([UNCLEAR], {"unclear": "fail", **IGNORE}, "passed", False),
    "unclear, pass": ([UNCLEAR], {"unclear": "pass"}, "passed", False),
    "unclear, warn": ([UNCLEAR], {"unclear": "warn"}, "undecided", False),
    "unclear, fail": ([UNCLEAR], {"unclear": "fail"}, "undecided", True),
    "no row": ([], {}, "undecided", True),
    "broken": ([failed_row(EFFORT, "fc1", "NaN")], {}, "undecided", True),
    "no time": (
        [skipped_row(EFFORT, "fc1", "no time", details={"left_out": True})],
        {},
        "undecided",
        True,
    ),
    "not applicable": ([skipped_row(EFFORT, "fc1", "no layer")], {}, "passed", False),
}
"""Rows, the policy, and for a rule of level error the word, and whether the gate fails."""


def judged(rows: list[Measurement], level: str, *, strict: bool = False, **policy: Any) -> Report:
    rules = [{"metric": EFFORT, "max": 1, "level": level}, {"metric": RANK, "max": 1}]
    rules_ = Policy.model_validate({"rules": rules, **policy})
    return gate(make_report(WITHIN, *rows), rules_, strict=strict)


@pytest.mark.parametrize("name", CASES)
def test_each_finding_makes_its_word(name: str) -> None:
    rows, policy, word, failing = CASES[name]
    of_error = judged(rows, "error", **policy)
    assert (verdict(of_error), fails(of_error)) == (word, failing)
    assert passed(of_error) is (word == "passed")
    assert of_error.provenance["verdict"] == word
    of_warning = judged(rows, "warning", **policy)
    assert (verdict(of_warning), fails(of_warning)) == ("passed", False)


@pytest.mark.parametrize("name", CASES)
def test_strict_fails_what_is_undecided_and_changes_no_word_else(name: str) -> None:
    rows, policy, word, _ = CASES[name]
    strict = judged(rows, "error", strict=True, **policy)
    expected = "undecided" if name == "unclear, pass" else word
    assert (verdict(strict), fails(strict)) == (expected, expected != "passed")


@pytest.mark.parametrize("pair", list(combinations(CASES, 2)), ids=" and ".join)
def test_of_two_findings_the_graver_makes_the_word(pair: tuple[str, str]) -> None:
    """Rules of one level about two metrics, each with its own word for what is unclear."""
    words, failing, rows, rules, ignore = [], [], [WITHIN], [{"metric": RANK, "max": 1}], []
    for number, name in enumerate(pair):
        found, policy, word, fail = CASES[name]
        metric = f"leak.x{number}"
        rule: dict[str, Any] = {"metric": metric, "max": 1}
        rules.append(rule | ({"unclear": policy["unclear"]} if "unclear" in policy else {}))
        ignore += [{**each, "metric": metric} for each in policy.get("ignore", [])]
        rows += [each.model_copy(update={"metric": f"x{number}"}) for each in found]
        words.append(word)
        failing.append(fail)
    both = gate(make_report(*rows), Policy.model_validate({"rules": rules, "ignore": ignore}))
    order = ["failed", "undecided", "passed"]
    assert verdict(both) == min(words, key=order.index)
    assert fails(both) == any(failing)


def test_what_the_baseline_had_is_accepted() -> None:
    for rows in ([row(EFFORT, "fc1", 1.5)], [UNCLEAR]):
        report = make_report(WITHIN, *rows)
        policy = Policy.model_validate({"rules": [{"metric": EFFORT, "max": 1, "unclear": "fail"}]})
        assert fails(gate(report, policy))
        known = gate(report, policy, baseline=report)
        assert (verdict(known), fails(known)) == ("passed", False)


@pytest.mark.parametrize("level", ["error", "warning"])
def test_where_no_row_could_be_judged_nothing_passes(level: str) -> None:
    rules = Policy.model_validate({"rules": [{"metric": EFFORT, "max": 1, "level": level}]})
    report = gate(make_report(WITHIN, skipped_row(EFFORT, "fc1", "no layer")), rules)
    assert (verdict(report), fails(report)) == ("undecided", False)


def test_what_is_never_shared_needs_no_evidence() -> None:
    report = make_report(WITHIN)
    report.provenance["hidden"] = ["head"]
    report.provenance["attributes"] = ["sex"]
    rules = Policy.model_validate({"rules": [{"metric": "leak.bits", "layers": "head", "max": 1}]})
    hidden = gate(report, rules)
    assert [finding.outcome for finding in hidden.findings] == ["not-applicable"]
    assert (verdict(hidden), fails(hidden)) == ("passed", False)


FEW = "12 records; 40 are needed"
EVIDENCE: list[tuple[str, list[Measurement], list[str], str]] = [
    ("an attribute", [skipped_row("leak.bits", "fc1", FEW)], ["sex"], "the attribute sex"),
    ("no attribute is named", [skipped_row("leak.bits", "fc1", FEW)], [], ""),
    (
        "judged in another layer",
        [skipped_row("leak.bits", "fc1", FEW), row("leak.bits", "fc2", 0.1)],
        ["sex"],
        "",
    ),
    ("an attack", [skipped_row("attack.gain", None, FEW)], [], "attacks"),
    (
        "another attack",
        [skipped_row("attack.gain", None, FEW), row("attack.tokens", None, 0.1)],
        [],
        "",
    ),
]


@pytest.mark.parametrize(
    ("rows", "attributes", "lacking"), [x[1:] for x in EVIDENCE], ids=[x[0] for x in EVIDENCE]
)
def test_error_rules_that_ask_in_vain_fail_for_want_of_evidence(
    rows: list[Measurement], attributes: list[str], lacking: str
) -> None:
    report = make_report(WITHIN, *rows)
    report.provenance["attributes"] = attributes
    for level in ("error", "warning"):
        about = {row.id: {"metric": row.id, "max": 1, "level": level} for row in rows}
        rules = [{"metric": RANK, "max": 1}, *about.values()]
        found = gate(report, Policy.model_validate({"rules": rules}))
        missing = lacking if level == "error" else ""
        assert verdict(found) == ("undecided" if missing else "passed")
        assert fails(found) is bool(missing)
        said = f"no evidence: rules of level error ask about {missing}, and judged no row: {FEW}"
        assert [f.message for f in found.findings if not f.rule] == [said] * bool(missing)


@pytest.mark.parametrize(("metric", "word"), [("leak.bits", "undecided"), (EFFORT, "passed")])
def test_too_few_records_for_a_question_about_an_attribute_are_unmeasured(
    metric: str, word: str
) -> None:
    short = skipped_row(metric, "fc1", FEW, details={"too_few": True})
    rules = [{"metric": metric, "max": 1}, {"metric": RANK, "max": 1}]
    judged = gate(make_report(WITHIN, short), Policy.model_validate({"rules": rules}))
    assert (verdict(judged), fails(judged)) == (word, word != "passed")
