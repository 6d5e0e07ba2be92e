"""Questions that not every adversary which applies was run on, so that no row passes a rule."""

from collections.abc import Mapping
from typing import Any

from gradaudit.audits import Audit, Metric, audits
from gradaudit.audits.gathering import rows_of
from gradaudit.judging.policy import known_metrics
from gradaudit.measurement import EFFORT
from gradaudit.report import Measurement, Report

_NOT_RUN = "not run: {} (gradaudit scan without --audits runs them)"
_REASONS = {
    "failed": "failed: {}",
    "left out": "left out: {}",
    "below": "not shown to do as much as the preset quick: {}",
    "kindless": "methods for fully connected and convolutional layers were not run, as the kinds "
    "of an exported model's layers are not known: {}",
}
_KINDLESS = "Module"
"""Kind of layers of which only the weights are known, as those of an exported model."""


def unanswered(report: Report) -> Mapping[str, str]:
    """Return questions with the adversaries on them that were not run at least at quick.

    An adversary counts as run where it does not apply, but for layers of unknown kind. A report
    that names no audit has none.
    """
    untried: dict[str, dict[str, list[str]]] = {}
    kindless = of_unknown_kinds(report)
    for audit in audits().values() if report.options else ():
        question = _question_of(audit)
        if question and (why := "kindless" if kindless else _untried(audit, report)):
            untried.setdefault(question, {}).setdefault(why, []).append(audit.name)
    return {question: _words(reasons) for question, reasons in untried.items()}


def of_unknown_kinds(report: Report) -> bool:
    """Whether only the weights of layers are known, so that some methods cannot be run on them."""
    return any(layer.kind == _KINDLESS for layer in report.target.layers)


def question_of(row: Measurement) -> str:
    """Return the question that an adversary's row answers; empty for other rows."""
    metric = known_metrics().get(row.id)
    return (metric.question or "") if metric and _is_adversary(metric) else ""


def _is_adversary(metric: Metric) -> bool:
    """Whether a metric is what an adversary got; not one that proves a lower bound by itself."""
    return bool(metric.cleared) and not metric.proven


def _question_of(audit: type[Audit[Any]]) -> str:
    """Return the question that an adversary is made for: that of its first metric."""
    metrics = () if audit.proxy else filter(_is_adversary, audit.metrics)
    return next((metric.question or "" for metric in metrics), "")


def _untried(audit: type[Audit[Any]], report: Report) -> str:
    """Say why an adversary counts as not tried; empty where it was, or does not apply."""
    rows = rows_of(report, audit) if audit.name in report.options else []
    measured = [row for row in rows if row.status == "measured"]
    if any(row.details.get(EFFORT) != "below" for row in measured):
        return ""
    if measured:
        return "below"
    if any(row.left_out for row in rows):
        return "left out"
    if any(row.status == "failed" for row in rows):
        return "failed"
    return "" if rows else "not run"


def _words(reasons: Mapping[str, list[str]]) -> str:
    templates = {"not run": _NOT_RUN, **_REASONS}
    return "; ".join(
        template.format(", ".join(reasons[why]))
        for why, template in templates.items()
        if why in reasons
    )
