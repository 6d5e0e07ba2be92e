"""A trial: a protection measured on some records, and judged by the policy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gradaudit.audits.sizes import Size
from gradaudit.defenses import parse_defense
from gradaudit.defenses.subject import Subject
from gradaudit.judging import Policy, gate, known_metrics
from gradaudit.models.target import Layer
from gradaudit.progress import Progress, Silent
from gradaudit.protection.guards import Protection
from gradaudit.protection.lessons import Verdict
from gradaudit.protection.settings import defense_specs
from gradaudit.protection.updates import Updates
from gradaudit.report import Finding, Measurement, Report
from gradaudit.runner import Run, measured
from gradaudit.units import NOTHING_KEPT, Units

_JUDGED = ("failed", "unclear", "passed")
_MOST = 1e6
"""Excess that stands for all that is larger, and for infinity."""


@dataclass
class Bench:
    """Where protections are tried, on the records of a subject.

    Attributes:
        subject: with what is hidden and defended anyway.
        sizes: the audits that the policy needs, as they are made.
        policy: the rules.
        updates: what the layers share.
        strict: whether what is unclear fails.
        units: where finished work is kept.
    """

    subject: Subject
    sizes: Sequence[Size]
    policy: Policy
    updates: Updates
    strict: bool = False
    progress: Progress = field(default_factory=Silent)
    units: Units = NOTHING_KEPT
    _reports: dict[Protection, Report] = field(default_factory=dict)
    _begun: Run | None = None

    def verdict(self, protection: Protection) -> Verdict:
        """What the rules say of it."""
        return verdict_of(self.judged(protection))

    def judged(self, protection: Protection) -> Report:
        """The report of what is shared under it, with findings; made once."""
        if protection not in self._reports:
            report = self._report(self.protected(protection))
            self._reports[protection] = gate(report, self.policy, strict=self.strict)
        return self._reports[protection]

    def protected(self, protection: Protection) -> Subject:
        """The subject with a protection."""
        specs = defense_specs(protection, self.updates)
        return replace(
            self.subject,
            layers=_shared(self.subject.layers, protection),
            hidden=(*self.subject.hidden, *protection.hidden),
            defenses=(*self.subject.defenses, *map(parse_defense, specs)),
        )

    def _report(self, subject: Subject) -> Report:
        """What the audits find; the model's accuracy is looked at once."""
        self._begun = self._begun or Run.begun(self.subject)
        run = replace(self._begun, subject=subject, outcomes=[])
        for size in self.sizes:
            sampled = replace(subject, samples=subject.samples or size.samples)
            run.outcomes.append(measured(sampled, size.audit, self.progress, self.units))
        return run.report()


def _shared(layers: Sequence[Layer], protection: Protection) -> tuple[Layer, ...]:
    return tuple(layer for layer in layers if layer.name not in protection.hidden)


def verdict_of(judged: Report) -> Verdict:
    """What a judged report says of the protection that it was measured under."""
    shown = {layer.name for layer in judged.target.layers}
    faults = [finding for finding in judged.findings if finding.says == "error"]
    missing = [f for f in faults if f.outcome == "unmeasured"]
    beyond = [f for f in faults if f.outcome != "unmeasured"]
    relative = {name for name, metric in known_metrics().items() if metric.relative}
    of_layers = [(f.layer, f.metric) for f in beyond if f.layer is not None and f.layer in shown]
    return Verdict(
        layers=frozenset(layer for layer, metric in of_layers if metric not in relative),
        relative=frozenset(layer for layer, metric in of_layers if metric in relative),
        whole=any(f.layer not in shown for f in beyond),
        broken="; ".join(str(f) for f in missing),
        excess=_excess(judged),
        failed=tuple(str(f) for f in faults),
    )


def unlooked(before: Report, now: Report) -> str:
    """What was judged before and could not be now, in words; empty where all was.

    Fewer records may not be enough for an audit, whose rule then passes for want of a number.
    """
    held = {(f.rule, f.key): f for f in now.findings}
    lost = [
        finding
        for f in before.findings
        if f.outcome in _JUDGED
        and (finding := held.get((f.rule, f.key))) is not None
        and finding.outcome == "not-applicable"
    ]
    return f"{lost[0]}" if lost else ""


def _excess(judged: Report) -> float | None:
    """How far the worst row is beyond the limit of a rule of level error."""
    rows = judged.by_key()
    found = [
        _beyond(finding, row)
        for finding in judged.findings
        if finding.level == "error"
        and finding.outcome in _JUDGED
        and (row := rows.get(finding.key)) is not None
    ]
    return max(found, default=None)


def _beyond(finding: Finding, row: Measurement) -> float:
    limit = finding.min if finding.max is None else finding.max
    assert limit is not None  # as of every rule
    assert row.number is not None  # it was judged
    sign = -1 if finding.max is None else 1
    excess = sign * (row.number - limit) / (abs(limit) or 1.0)
    return max(-_MOST, min(excess, _MOST)) if not math.isnan(excess) else _MOST
