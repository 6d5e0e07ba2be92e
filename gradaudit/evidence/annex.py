"""Writes the annex of an assessment: a row for each class of attack, with what standards ask.

The columns of standards name what each class answers: paragraph 55 of the EDPB's Opinion 28/2024
(tests of AI models), clauses of ISO/IEC 27559:2022 (6.2 threats, 7.3.2 attacks, 8.2.2 numbers,
8.2.3 adversarial tests, 9.3.2 review) and subjects of NIST SP 800-226 (2025).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from gradaudit.audits import Metric
from gradaudit.audits.gathering import member_of
from gradaudit.core.text import markdown_escape, markdown_table, number
from gradaudit.evidence.commitment import Commitment
from gradaudit.judging import known_metrics, verdict
from gradaudit.report import Measurement, Report, estimate
from gradaudit.view.signoff import given, unit_of, worst_record

MOST_NUMBERS = 3
"""Most metrics that a class shows with their worst layer."""
NOTE = (
    "The Opinion and the guidelines are about models and published results; the numbers here are "
    "about updates that are shared while a model is trained. An attack on the finished model is "
    "not among them."
)


class AttackClass(NamedTuple):
    """A class of attacks: the audits that play it, and what standards call it."""

    name: str
    audits: tuple[str, ...]
    edpb: str
    iso: str
    nist: str


CLASSES = (
    AttackClass(
        "attribute inference",
        ("vinfo", "subspace", *(f"attack {x}" for x in ("attribute", "property", "distribution"))),
        "attribute inference",
        "7.3.2, 8.2.3",
        "inference beyond what ε bounds",
    ),
    AttackClass(
        "membership inference",
        ("attack tracing", "attack record", "attack user"),
        "membership inference",
        "7.3.2, 8.2.3",
        "what ε bounds",
    ),
    AttackClass(
        "reconstruction",
        ("attack reconstruct", "attack table", "attack labels"),
        "reconstruction attacks",
        "7.3.2, 8.2.2, 8.2.3",
        "reconstruction",
    ),
    AttackClass(
        "inversion",
        ("copa-metric", "floor", "forward", "sensitivity"),
        "model inversion",
        "7.3.2, 8.2.2",
        "reconstruction",
    ),
    AttackClass(
        "text",
        ("attack text",),
        "exfiltration; regurgitation of training data",
        "7.3.2, 8.2.3",
        "reconstruction",
    ),
    AttackClass(
        "malicious server", ("attack malicious-server",), "–", "6.2, 8.2.3", "trust in the server"
    ),
    AttackClass(
        "epsilon", ("dp-audit", "job"), "–", "8.2.2, 9.3.2", "ε, δ, unit of privacy, neighbours"
    ),
)
HEADINGS = (
    "attack",
    "executed",
    "attacker is given",
    "unit",
    "worst layer, interval",
    "chance",
    "worst record beside the mean",
    "setting",
    "EDPB 28/2024, 55",
    "ISO/IEC 27559",
    "NIST SP 800-226",
)


def annex(
    report: Report, commitment: Commitment | None = None, stamped: datetime | None = None
) -> str:
    """Returns the annex of a report as Markdown, with the commitment's time or its timestamp's."""
    target = report.target
    lines = [
        f"# Annex: attacks on {markdown_escape(target.model)}",
        "",
        f"Verdict: {verdict(report).upper()}. {NOTE}",
        "",
        *markdown_table(HEADINGS, [_row(kind, report) for kind in CLASSES]),
    ]
    if commitment is not None:
        lines += ["", f"The policy was {commitment.order(report, stamped)}."]
    return "\n".join(lines) + "\n"


def _row(kind: AttackClass, report: Report) -> list[str]:
    rows = [row for row in report.rows if member_of(row) in kind.audits]
    measured = [row for row in rows if row.status == "measured"]
    known = dict.fromkeys(fact for row in measured for fact in given(row))
    settings = {str(row.details["setting"]) for row in measured if "setting" in row.details}
    worst = _worst(measured)
    cells = (
        kind.name,
        _executed(rows, measured),
        "; ".join(known),
        unit_of(measured) if measured else "",
        "; ".join(
            f"{row.id} {estimate(row)}" + (f" in {row.layer}" if row.layer is not None else "")
            for row, _ in worst
        ),
        "; ".join(
            f"{row.id} {number(metric.chance)}"
            for row, metric in worst
            if metric.chance is not None
        ),
        worst_record(measured),
        ", ".join(sorted(settings)),
        kind.edpb,
        kind.iso,
        kind.nist,
    )
    return [markdown_escape(cell) or "–" for cell in cells]


def _executed(rows: Sequence[Measurement], measured: Sequence[Measurement]) -> str:
    """Says whether a class was executed, failed, was not run or does not apply, with a reason."""
    if measured:
        return f"executed ({', '.join(dict.fromkeys(map(member_of, measured)))})"
    if not rows:
        return "not run: not asked for"
    row = next((row for row in rows if row.status == "failed" or row.left_out), rows[0])
    word = "failed" if row.status == "failed" else "not run" if row.left_out else "not applicable"
    return f"{word}: {row.reason}"


def _worst(rows: Sequence[Measurement]) -> list[tuple[Measurement, Metric]]:
    """Returns the riskiest layer's row of some metrics, those that answer a question first."""
    found: dict[str, tuple[Measurement, Metric]] = {}
    for row in rows:
        metric = known_metrics().get(row.id)
        if metric is None or not metric.riskier or row.variant.keys() - {row.audit}:
            continue
        sign = -1 if metric.riskier == "lower" else 1
        kept = found.get(row.id)
        if kept is None or sign * (row.number or 0.0) > sign * (kept[0].number or 0.0):
            found[row.id] = row, metric
    return sorted(found.values(), key=lambda each: not each[1].question)[:MOST_NUMBERS]
