"""The default policy: the limits that the audits' metrics declare."""

import textwrap

import yaml

from gradaudit.audits import Metric, audits
from gradaudit.judging.policy import Policy, Rule
from gradaudit.report import Report

_HEADER = """\
# gradaudit's default policy: what each audit declares about its metrics. An interval that lies
# beyond the limit of an error rule shows a high risk, beyond that of a warning rule a medium one;
# an interval that holds the limit shows neither and excludes neither.
"""


def default_policy(report: Report | None = None) -> Policy:
    """The limits that the installed audits declare for their metrics.

    Args:
        report: leaves out metrics of which this report has no headline row, so that a report of
            one audit is not failed for the others. An audit that was asked for and broke has
            rows that say so, and keeps its rules.
    """
    held = None if report is None else {row.id for row in report.measurements if not row.variant}
    return Policy(
        rules=tuple(
            rule
            for name, metric in known_metrics().items()
            if held is None or name in held
            for rule in _rules(name, metric)
        )
    )


def default_policy_yaml() -> str:
    """The default policy as a policy file, with the reason for each limit."""
    return _HEADER + "rules:\n" + "".join(_entry(rule) for rule in default_policy().rules)


def known_metrics() -> dict[str, Metric]:
    """The metrics of the installed audits by ``audit.metric``."""
    return {
        f"{audit.reports_as()}.{metric.id}": metric
        for audit in audits().values()
        for metric in audit.metrics
    }


def proxies() -> set[str]:
    """The metrics of audits that try to learn nothing, by ``audit.metric``."""
    return {
        f"{audit.reports_as()}.{metric.id}"
        for audit in audits().values()
        if audit.proxy
        for metric in audit.metrics
    }


def _rules(name: str, metric: Metric) -> list[Rule]:
    limits = {"error": metric.error, "warning": metric.warning}
    if metric.riskier == "higher":
        return [Rule(metric=name, max=x, level=lv) for lv, x in limits.items() if x is not None]
    if metric.riskier == "lower":
        return [Rule(metric=name, min=x, level=lv) for lv, x in limits.items() if x is not None]
    return []


def _entry(rule: Rule) -> str:
    metric = known_metrics()[rule.metric]
    comment = textwrap.fill(
        f"{metric.title}: {metric.why}" if metric.why else metric.title,
        width=98,
        initial_indent="  # ",
        subsequent_indent="  # ",
    )
    values = rule.model_dump(include={"metric", "max", "min", "level"}, exclude_none=True)
    line = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10_000)
    return f"{comment}\n  - {line}"
