"""Risk levels: what a policy's findings say of each layer, in one word and in sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gradaudit.judging.default import known_metrics
from gradaudit.judging.judge import gate
from gradaudit.judging.policy import Policy
from gradaudit.report import Finding, Report

Level = Literal["high", "medium", "unknown", "low"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The gravest first."""

BEYOND = frozenset({"failed", "known", "ignored"})
"""Outcomes of values beyond their limit: accepting a risk does not remove it."""


@dataclass(frozen=True)
class Risk:
    """How risky a layer is, and why in sentences (none for ``low``)."""

    level: Level
    reasons: tuple[str, ...] = ()


def layer_risks(report: Report, policy: Policy | None = None) -> dict[str | None, Risk]:
    """The risk of every layer, and of the whole model under None where a rule speaks of it.

    A layer's risk is high where a value is beyond the limit of an error rule, medium where one is
    beyond that of a warning rule, unknown where something that a rule asks for could not be
    measured or no rule judged the layer at all, and low otherwise.

    Args:
        report: a report; its findings are used where it has any and no policy is given.
        policy: the rules; the default policy without them.
    """
    return risks_of(with_findings(report, policy))


def with_findings(report: Report, policy: Policy | None = None) -> Report:
    """The report as it is where it was judged already and no policy is given, else judged."""
    return report if report.findings and policy is None else gate(report, policy)


def risks_of(judged: Report) -> dict[str | None, Risk]:
    """The risks that the findings of a judged report stand for."""
    by_layer: dict[str | None, list[Finding]] = {layer.name: [] for layer in judged.target.layers}
    for finding in judged.findings:
        by_layer.setdefault(finding.layer, []).append(finding)
    return {layer: _risk(findings) for layer, findings in by_layer.items()}


def why(metric: str) -> str:
    """What a metric beyond its limit means, as the audit says it; empty for unknown metrics."""
    known = known_metrics().get(metric)
    return known.why if known else ""


def _risk(findings: Sequence[Finding]) -> Risk:
    beyond = [finding for finding in findings if finding.outcome in BEYOND]
    errors = [finding for finding in beyond if finding.level == "error"]
    if beyond:
        return Risk("high" if errors else "medium", tuple(map(_sentence, errors or beyond)))
    unmeasured = [finding for finding in findings if finding.outcome == "unmeasured"]
    if unmeasured:
        return Risk("unknown", tuple(map(_sentence, unmeasured)))
    if not any(finding.outcome == "passed" for finding in findings):
        return Risk("unknown", ("no rule judged this layer",))
    return Risk("low")


def _sentence(finding: Finding) -> str:
    explanation = why(finding.metric)
    return f"{finding.metric}: {finding.message}" + (f": {explanation}" if explanation else "")
