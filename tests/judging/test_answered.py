"""A question to attacks is answered only where every attack that applies was tried."""

from typing import Any

import pytest
from report_builder import make_report, row, skipped_row

from gradaudit.judging import Policy, gate, verdict
from gradaudit.judging.answered import unanswered
from gradaudit.report import Measurement, Report

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


CASES = [
    ("all tried", others(), ""),
    (
        "one hardly",
        others(reconstruct=of("reconstruct", "relative_error", 1.0, effort="below")),
        "attack reconstruct is not shown to do as much as the preset quick",
    ),
    ("one not", others()[1:], "attack reconstruct was not run"),
    (
        "one left out",
        others(text=of("text", "tokens_recovered", None, left_out=True)),
        "attack text was left out",
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
    end = f"; {why}, and it may get more" if why else "it is what this adversary got, and a "
    assert end in finding.message


def test_a_single_audit_is_judged_for_itself() -> None:
    report = make_report(row("attack.record_auroc", None, 0.5, details={"effort": "quick"}))
    report.provenance["audits"] = {"attack record": {}}
    assert unanswered(report) == {}
    assert verdict(gate(report, POLICY)) == "passed"
