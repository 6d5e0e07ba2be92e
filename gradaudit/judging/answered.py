"""Questions that not every attack which applies was tried on, so that no row passes a rule."""

from collections.abc import Mapping
from typing import Any

from gradaudit.audits import Audit, audits
from gradaudit.judging.verdict import ATTACK
from gradaudit.measurement import EFFORT
from gradaudit.report import Measurement, Report


def unanswered(report: Report) -> Mapping[str, str]:
    """Return questions to attacks with the reason why some attack did not answer them.

    Of a report of several audits every attack on a question must have been run at least at the
    preset quick, or not apply. A single audit is judged for itself.
    """
    reasons: dict[str, str] = {}
    if len(report.options) < 2:
        return reasons
    for audit in audits().values():
        if audit.reports_as() == ATTACK and not audit.proxy and (why := _untried(audit, report)):
            for metric in audit.metrics:
                if metric.question:
                    reasons.setdefault(metric.question, why)
    return reasons


def _untried(audit: type[Audit[Any]], report: Report) -> str:
    """Say why an attack counts as not tried; empty where it was, or does not apply."""
    rows = _rows_of(audit, report)
    measured = [row for row in rows if row.status == "measured"]
    if any(row.details.get(EFFORT) != "below" for row in measured):
        return ""
    if measured:
        return f"{audit.name} is not shown to do as much as the preset quick"
    if any(row.left_out for row in rows):
        return f"{audit.name} was left out"
    if any(row.status == "failed" for row in rows):
        return f"{audit.name} failed"
    return "" if rows else f"{audit.name} was not run"


def _rows_of(audit: type[Audit[Any]], report: Report) -> list[Measurement]:
    """Return the rows of an attack; rows without a label are of the only attack that was run."""
    label = audit.name.removeprefix(ATTACK).strip()
    rows = [row for row in report.measurements if row.audit == ATTACK]
    labelled = [row for row in rows if ATTACK in row.variant]
    if labelled:
        return [row for row in labelled if row.variant[ATTACK] == label]
    return rows if audit.name in report.options else []
