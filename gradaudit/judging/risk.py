"""Risk levels: the findings on each layer as one word and as sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gradaudit.audits.gathering import incomplete
from gradaudit.judging.judge import beside_limits, gate
from gradaudit.judging.policy import Policy, default_policy, known_metrics, proxies
from gradaudit.judging.verdict import UNJUDGED, is_scan
from gradaudit.report import Finding, Report

Level = Literal["high", "medium", "unknown", "low", "not tested"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Risk levels, the gravest first."""

BEYOND = frozenset({"failed", "known", "ignored"})
"""Outcomes of values beyond their limit; an accepted risk is still a risk."""
OPEN = frozenset({"unclear", "unmeasured"})
"""Outcomes that exclude no risk."""
TRIED = frozenset({"passed", "unclear"}) | BEYOND
"""Outcomes of rows with a value."""
UNTRIED = "nothing that a rule judges tried to learn anything from its gradient"


@dataclass(frozen=True)
class Risk:
    """The risk level of a layer, and its reasons in sentences (none for ``low``).

    ``possible`` is the highest level that is not excluded, where that is higher than the one shown.
    """

    level: Level
    reasons: tuple[str, ...] = ()
    possible: Level | None = None

    @property
    def sign(self) -> Level | None:
        """The level to colour, if any."""
        return sign_of(self.level, self.possible)

    def __str__(self) -> str:
        """Formats the risk: ``low, high not excluded``."""
        return self.level + (f", {self.possible} not excluded" if self.possible else "")


def layer_risks(report: Report, policy: Policy | None = None) -> dict[str | None, Risk]:
    """Returns the risk of every layer, and of the whole model under None where a rule judges it.

    A layer's risk is the highest level that is shown: high where an interval as a whole is beyond
    the limit of an error rule, medium where one is beyond that of a warning rule; else unknown
    where something that a rule asks for could not be measured, not tested where nothing was judged
    but metrics that try nothing (``Audit.proxy``), and low otherwise. Beside it stands the
    highest level that what is unclear leaves possible.

    Args:
        report: a report; its findings are used where it has any and no policy is given.
        policy: the rules; the default policy without them.
    """
    return risks_of(with_findings(report, policy))


def with_findings(report: Report, policy: Policy | None = None) -> Report:
    """Returns the report judged by the policy; an already judged one is returned as it is.

    Without a policy a report stays as it is, too, that the default policy has no rule for: nobody
    asked for more than its numbers. One of a scan, or that broke, never does. A single audit has
    findings beside the default limits, and no verdict.
    """
    whole = not is_scan(report) and not report.interrupted and incomplete(report) is None
    if policy is None and (report.findings or (whole and not default_policy(report).rules)):
        return report
    alone = policy is None and report.provenance.get(UNJUDGED)
    return beside_limits(report) if alone else gate(report, policy)


def risks_of(judged: Report) -> dict[str | None, Risk]:
    """Returns the risk of each layer from the findings of a judged report."""
    by_layer: dict[str | None, list[Finding]] = {layer.name: [] for layer in judged.target.layers}
    for finding in judged.findings:
        by_layer.setdefault(finding.layer, []).append(finding)
    return {layer: _risk(findings) for layer, findings in by_layer.items()}


def sign_of(level: Level, possible: Level | None) -> Level | None:
    """The level to colour; None for a low one where a graver one is not excluded."""
    return None if level == "low" and possible else level


def why(metric: str) -> str:
    """Returns the audit's explanation of a metric beyond its limit; empty for unknown metrics."""
    known = known_metrics().get(metric)
    return known.why if known else ""


def _risk(findings: Sequence[Finding]) -> Risk:
    beyond = _gravest([finding for finding in findings if finding.outcome in BEYOND])
    unsettled = _gravest([finding for finding in findings if finding.outcome in OPEN])
    if beyond:
        return _with_open(level_of(beyond[0]), beyond, unsettled)
    unmeasured = [finding for finding in findings if finding.outcome == "unmeasured"]
    if unmeasured:
        unclear = _gravest([finding for finding in findings if finding.outcome == "unclear"])
        return _with_open("unknown", unmeasured, unclear)
    if {finding.metric for finding in findings if finding.outcome in TRIED} <= proxies():
        return _with_open("not tested", [], unsettled)
    return _with_open("low", [], unsettled)


def level_of(finding: Finding) -> Level:
    """Returns the risk level of a finding: high for an error rule, medium for a warning."""
    return "high" if finding.level == "error" else "medium"


def _gravest(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Returns the findings of error rules, or all where there are none."""
    return [finding for finding in findings if finding.level == "error"] or findings


def _with_open(level: Level, reasons: Sequence[Finding], unsettled: Sequence[Finding]) -> Risk:
    """Returns a risk with its reasons, and a graver level that open findings leave possible."""
    words = [UNTRIED] if level == "not tested" else []
    possible = level_of(unsettled[0]) if unsettled else None
    if possible is None or LEVELS.index(possible) >= LEVELS.index(level):
        return Risk(level, (*words, *map(_sentence, reasons)))
    return Risk(level, (*words, *map(_sentence, (*reasons, *unsettled))), possible)


def _sentence(finding: Finding) -> str:
    explanation = why(finding.metric) if finding.outcome in BEYOND else ""
    return f"{finding.metric}: {finding.message}" + (f": {explanation}" if explanation else "")
