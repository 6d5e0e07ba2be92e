"""A trial: a protection measured on some records, and judged by the policy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gradaudit.audits import Audit
from gradaudit.audits.sizes import Size
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.defenses.subject import Subject
from gradaudit.gathering import AuditRows
from gradaudit.judging import Policy, gate, known_metrics
from gradaudit.models.target import Layer
from gradaudit.progress import Progress, Silent
from gradaudit.protection.asking import judges
from gradaudit.protection.guards import Guard, Protection
from gradaudit.protection.lessons import Verdict
from gradaudit.protection.settings import defense_specs
from gradaudit.protection.updates import Updates
from gradaudit.report import Finding, Measurement, Report
from gradaudit.runner import Outcome, Run, measured
from gradaudit.units import NOTHING_KEPT, Units

_JUDGED = ("failed", "unclear", "passed")
_MOST = 1e6
"""Excess that stands for all that is larger, and for infinity."""


@dataclass
class Bench:
    """Where protections are tried, on the records of a subject.

    A layer's rows of an audit are measured once for each guard, where no rule asks that audit for
    a row of the model or for a relative metric: what else is hidden does not change them. Defenses
    that are there anyway may look at the whole update, and then all is measured anew.

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
    _rows: dict[tuple[str, str, Guard], list[Measurement]] = field(default_factory=dict)
    _begun: Run | None = None

    def anew(self, records: Records) -> Self:
        """The same on other records, with nothing measured."""
        subject = replace(self.subject, records=records)
        return replace(self, subject=subject, _reports={}, _rows={}, _begun=None)

    def verdict(self, protection: Protection) -> Verdict:
        """What the rules say of it."""
        return verdict_of(self.judged(protection))

    def judged(self, protection: Protection) -> Report:
        """The report of what is shared under it, with findings; made once."""
        if protection not in self._reports:
            report = self._report(protection)
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

    def _report(self, protection: Protection) -> Report:
        """What the audits find; the model's accuracy is looked at once."""
        self._begun = self._begun or Run.begun(self.subject)
        outcomes = [self._outcome(size, protection) for size in self.sizes]
        protected = self.protected(protection)
        return replace(self._begun, subject=protected, outcomes=outcomes).report()

    def _outcome(self, size: Size, protection: Protection) -> Outcome:
        """What an audit comes to, with what is known already where its layers are separable."""
        subject = self.protected(protection)
        subject = replace(subject, samples=subject.samples or size.samples)
        if not self._separable(size.audit):
            return measured(subject, size.audit, self.progress, self.units)
        guards, name = dict(protection), size.audit.name
        keys = {layer.name: (name, layer.name, guards[layer.name]) for layer in subject.layers}
        fresh = tuple(layer for layer in subject.layers if keys[layer.name] not in self._rows)
        known = [row for key in keys.values() for row in self._rows.get(key, ())]
        if not fresh:
            return Outcome(AuditRows.of(size.audit, known), 0.0)
        only = replace(subject, layers=fresh)
        outcome = measured(only, size.audit, self.progress, self.units)
        if outcome.fault is None:
            for row in outcome.part.rows:
                if row.layer is not None:
                    self._rows.setdefault(keys[row.layer], []).append(row)
        return replace(outcome, part=AuditRows.of(size.audit, [*known, *outcome.part.rows]))

    def _separable(self, audit: Audit[Any]) -> bool:
        """Whether what rules ask of it are rows of layers that stand by themselves."""
        asked = [
            metric
            for metric in audit.metrics
            if any(judges(r, audit, metric) for r in self.policy.rules)
        ]
        return not self.subject.defenses and all(m.per_layer and not m.relative for m in asked)


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
