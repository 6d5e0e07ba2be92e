"""A question to attacks is answered only where every attack that applies was tried."""

from typing import Any

import pytest
from report_builder import make_report, row, skipped_row

from gradaudit.judging import Policy, gate, verdict, with_findings
from gradaudit.judging.answered import unanswered
from gradaudit.report import Measurement, Report
from gradaudit.view import view

POLICY = Policy.model_validate({"rules": [{"metric": "attack.record_auroc", "max": 0.6}]})
ON_RECORDS = ("reconstruct", "attribution", "table", "text")
"""Attacks on records beside ``attack record``."""


def of(attack: str, metric: str, value: float | None, **details: Any) -> Measurement:
    variant = {"attack": attack}
    if value is None:
        away = skipped_row(f"attack.{metric}", None, "they are no texts", details=details)
        return away.model_copy(update={"variant": variant})
    return row(f"attack.{metric}", None, value, variant=variant, details=details)


def scanned(*others: Measurement) -> Report:
    """A scan in which ``attack record`` finds nothing, with rows of other attacks."""
    tried = of("record", "record_auroc", 0.5, effort="quick")
    headline = tried.model_copy(update={"variant": {}})
    report = make_report(headline, tried, *others)
    names = [f"attack {name}" for name in ("record", *ON_RECORDS)]
    report.provenance["audits"] = {name: {} for name in names}
    return report


def others(**changed: Measurement) -> list[Measurement]:
    """Rows of the other attacks: one that was tried, the others not applicable, but for changes."""
    rows = {name: of(name, "row_accuracy", None) for name in ON_RECORDS}
    rows["reconstruct"] = of("reconstruct", "relative_error", 1.0, effort="quick")
    return list({**rows, **changed}.values())


REMEDY = "(gradaudit scan without --audits runs them)"
CASES = [
    ("all tried", others(), ""),
    (
        "one hardly",
        others(reconstruct=of("reconstruct", "relative_error", 1.0, effort="below")),
        "not shown to do as much as the preset quick: attack reconstruct",
    ),
    ("one not", others()[1:], f"not run: attack reconstruct {REMEDY}"),
    ("two not", others()[2:], f"not run: attack attribution, attack reconstruct {REMEDY}"),
    (
        "one left out",
        others(text=of("text", "tokens_recovered", None, left_out=True)),
        "left out: attack text",
    ),
]


@pytest.mark.parametrize(("rows", "why"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_row_passes_where_every_attack_on_its_question_was_tried(
    rows: list[Measurement], why: str
) -> None:
    report = scanned(*rows)
    assert unanswered(report).get("records", "") == why
    judged = gate(report, POLICY)
    assert verdict(judged) == ("undecided" if why else "passed")
    (finding,) = judged.findings
    end = f"; {why}" if why else "it is what this adversary got, and a "
    assert end in finding.message


ALONE = {"attack record": {}}


def narrowed(**provenance: Any) -> Report:
    """A report of ``attack record`` alone, which finds nothing."""
    report = make_report(row("attack.record_auroc", None, 0.5, details={"effort": "quick"}))
    report.provenance.update(audits=ALONE, **provenance)
    return report


@pytest.mark.parametrize(
    ("provenance", "policy", "word"),
    [
        ({"plan": {}}, None, "undecided"),
        ({"plan": {}}, POLICY, "undecided"),
        ({}, None, "undecided"),
        ({}, POLICY, "passed"),
        ({"unjudged": True}, None, "undecided"),
    ],
    ids=["a scan", "a scan by own rules", "a single audit", "by own rules", "gated afterwards"],
)
def test_an_audit_alone_passes_by_rules_of_its_own_command_only(
    provenance: dict[str, Any], policy: Policy | None, word: str
) -> None:
    judged = gate(narrowed(**provenance), policy)
    assert verdict(judged) == word
    assert ("; not run: attack attribution, attack reconstruct" in str(judged.findings)) == (
        word == "undecided"
    )


def test_a_single_audit_without_a_policy_shows_its_rows_beside_the_limits() -> None:
    shown = with_findings(narrowed(unjudged=True))
    assert verdict(shown) == "measured"
    assert {finding.outcome for finding in shown.findings} == {"passed"}


def test_a_pass_names_the_questions_that_a_scan_left_out() -> None:
    """The attribute has every adversary, and records none."""
    rows = [of(name, "auroc_gain", 0.0, effort="quick") for name in ("attribute", "property")]
    rows += [of(name, "auroc_gain", None) for name in ("distribution", "user")]
    vinfo = row("vinfo.auroc", None, 0.5, details={"effort": "quick"})
    report = make_report(rows[0].model_copy(update={"variant": {}}), *rows, vinfo)
    names = [f"attack {x}" for x in ("attribute", "property", "distribution", "user")]
    audits = {name: {} for name in (*names, "vinfo")}
    report.provenance.update(audits=audits, plan={}, attributes=["sex"])
    assert view(report).verdict.word == (
        "PASSED by the default policy, but not every attack on records and labels was run"
    )


PROXY = row("sensitivity.input_f_bounded_median", "fc1", 0.1)
CRAFTED = row("attack.imprint_score", "fc1", 0.1)
INFERRED = row("vinfo.auroc", "fc1", 0.5)
ATTACKED = row("attack.relative_error", None, 0.9)


@pytest.mark.parametrize(
    ("rows", "attributes", "lacking"),
    [
        ([], ["sex"], ["the attribute sex", "attacks"]),
        ([], [], ["attacks"]),
        ([CRAFTED], [], ["attacks"]),
        ([INFERRED], ["sex"], ["attacks"]),
        ([ATTACKED], ["sex"], ["the attribute sex"]),
        ([INFERRED, ATTACKED], ["sex"], []),
    ],
)
def test_a_scan_without_evidence_about_attacks_or_its_attribute_does_not_pass(
    rows: list[Measurement], attributes: list[str], lacking: list[str]
) -> None:
    """By the default policy; a policy of one's own asks only what its rules ask."""
    report = make_report(PROXY, *rows)
    report.provenance.update(attributes=attributes, plan={})
    own = [{"metric": row.id, "min": 0} for row in (PROXY, *rows)]
    extended = gate(report, Policy.model_validate({"rules": own, "extends": "default"}))
    found = [x.message for x in extended.findings if not x.rule]
    assert found == [f"no evidence about {x}: no rule of level error judged a row" for x in lacking]
    assert verdict(extended) == ("undecided" if lacking else "passed")
    assert verdict(gate(report, Policy.model_validate({"rules": own}))) == "passed"


def test_a_sweep_has_not_to_answer_for_every_attack() -> None:
    report = make_report(PROXY)
    report.provenance.update(plan={}, sweep={"h": [1, 2]})
    assert verdict(gate(report)) == "passed"
