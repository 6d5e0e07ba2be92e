"""A trial: a protection measured on its records within its time, and judged by the policy."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gradaudit.audits import Audit
from gradaudit.audits.gathering import AuditRows
from gradaudit.audits.presets import Preset
from gradaudit.core.randomness import rng
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import AuditError
from gradaudit.judging import Policy, Rule, gate, known_metrics
from gradaudit.judging.policy import layer_matches
from gradaudit.models.target import Layer, shared_parameters
from gradaudit.progress import Progress, Silent
from gradaudit.protection.asking import asks, is_floor, judges
from gradaudit.protection.cheapest import ProtectionVerdict
from gradaudit.protection.guards import Guard, Protection, UndefendedUpdates
from gradaudit.protection.protection_plan import defense_specs
from gradaudit.report import Finding, Measurement, Report
from gradaudit.run.runner import Outcome, Run, measured
from gradaudit.subject import Subject


class Clock:
    """Limits the time of trials and of the whole search.

    A plan is measured on fresh records at last, fewer than those of the first measurement, so the
    time that this took is kept for it.

    Args:
        left: seconds that are left of the budget.
    """

    def __init__(self, left: Callable[[], float]) -> None:
        self._left = left
        self._opening = self._slowest = 0.0
        self._patience = -float("inf")
        self.satisfied = False
        """Whether some trial passed."""

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Makes the first measurement; if it used all the time, as much time again is allowed."""
        begun = time.monotonic()
        yield
        now = time.monotonic()
        self._opening, self._patience = now - begun, now + (now - begun)

    @contextmanager
    def trial(self) -> Iterator[float]:
        """Measures a trial's time, and yields the seconds that it may take."""
        begun = time.monotonic()
        yield self.left
        self._slowest = max(self._slowest, time.monotonic() - begun)

    @property
    def left(self) -> float:
        """Returns the seconds left for trials; until one passes, those of the first measurement."""
        left = self._left() - self._opening
        return left if self.satisfied else max(left, self._patience - time.monotonic())

    def more(self) -> bool:
        """Whether another trial may be begun: there is time for the longest so far."""
        return self.left > self._slowest


def split_records(records: Records, rounds: int, seed: int) -> list[Records]:
    """Splits off half of the records for the search, and the rest into equal parts.

    No user is in two of them.

    Raises:
        AuditError: there are fewer records, or users, than parts.
    """
    owners = _owners(records)
    order = rng(seed, "protection", "parts").permutation(owners.max() + 1)
    if len(order) < 2 * (rounds + 1):
        raise AuditError(f"{len(order)} records or users are too few for a search and {rounds}")
    half = len(order) // 2
    groups = [order[:half], *np.array_split(order[half:], rounds)]
    return [records.take(np.flatnonzero(np.isin(owners, group))) for group in groups]


def half_of(records: Records, seed: int, number: int) -> Records:
    """Returns half of the records, drawn at random by users, another half for each number."""
    owners = _owners(records)
    order = rng(seed, "protection", "halves", number).permutation(owners.max() + 1)
    return records.take(np.flatnonzero(np.isin(owners, order[: len(order) // 2])))


def _owners(records: Records) -> NDArray[np.int64]:
    """Returns the owner of each record, by number; without users each record owns itself."""
    if records.users is None:
        return np.arange(len(records))
    return np.unique(records.users, return_inverse=True)[1].astype(np.int64)


_JUDGED = ("failed", "unclear", "passed")
_MOST = 1e6
"""Largest excess that is told apart; larger and infinite ones count as this one."""


@dataclass
class Bench:
    """Tries protections on the records of a subject.

    A layer's rows of an audit are measured once for each guard, where no rule asks that audit for
    a relative metric, or for a row of the model, which it gave in a measurement before: what else
    is hidden does not change them. Defenses that are there anyway may look at the whole update, and
    then all is measured anew.

    Attributes:
        subject: subject with the layers that are hidden and the defenses that apply anyway.
        sizes: the audits that the policy needs, each at its chosen size.
        policy: the rules.
        updates: what the layers share.
        strict: whether what is unclear fails.
    """

    subject: Subject
    sizes: Sequence[Preset]
    policy: Policy
    updates: UndefendedUpdates
    strict: bool = False
    progress: Progress = field(default_factory=Silent)
    _reports: dict[Protection, Report] = field(default_factory=dict)
    _rows: dict[tuple[str, str, Guard], list[Measurement]] = field(default_factory=dict)
    _outcomes: dict[tuple[str, Protection], Outcome] = field(default_factory=dict)
    _of_models: set[str] = field(default_factory=set)
    _begun: Run | None = None

    def anew(self, records: Records) -> Self:
        """Returns a bench for other records, with nothing measured."""
        subject = replace(self.subject, records=records)
        return replace(self, subject=subject, _reports={}, _rows={}, _outcomes={}, _begun=None)

    def of(self, rules: Sequence[Rule]) -> Self:
        """Returns a bench for some of the rules, which shares measurements with this one."""
        policy = self.policy.model_copy(update={"rules": tuple(rules)})
        sizes = [size for size in self.sizes if any(asks(rule, size.audit) for rule in rules)]
        return replace(self, policy=policy, sizes=sizes, _reports={})

    def judged(self, protection: Protection, seconds: float | None = None) -> Report:
        """Returns the judged report of what is shared under a protection; it is computed once.

        What takes longer than so many seconds is cut short, and could not be measured then.
        """
        if protection in self._reports:
            return self._reports[protection]
        done = self._run(protection, seconds)
        judged = gate(done.report(), self.policy, strict=self.strict)
        if all(outcome.whole for outcome in done.outcomes):
            self._reports[protection] = judged
        return judged

    def protected(self, protection: Protection) -> Subject:
        """Returns the subject under a protection, without defenses of hidden layers alone."""
        specs = defense_specs(protection, self.updates)
        hidden = (*self.subject.hidden, *protection.hidden)
        names = shared_parameters(self.subject.target.model, hidden)
        kept = [defense for defense in self.subject.defenses if any(map(defense.defends, names))]
        return replace(
            self.subject,
            layers=_shared(self.subject.layers, protection),
            hidden=hidden,
            defenses=(*kept, *map(parse_defense, specs)),
        )

    def _run(self, protection: Protection, seconds: float | None) -> Run:
        """Runs the audits; the model's accuracy is measured once."""
        self._begun = self._begun or Run.begun(self.subject)
        end = None if seconds is None else time.monotonic() + seconds
        outcomes = []
        for size in self.sizes:
            left = None if end is None else end - time.monotonic()
            outcomes.append(self._outcome(size, protection, left))
        return replace(self._begun, subject=self.protected(protection), outcomes=outcomes)

    def _outcome(self, size: Preset, protection: Protection, seconds: float | None) -> Outcome:
        """Returns the outcome of an audit, reusing what is known of the protection's layers."""
        name, key = size.audit.name, (size.audit.name, protection)
        if key in self._outcomes:
            return self._outcomes[key]
        subject = self.protected(protection)
        subject = replace(subject, samples=subject.samples or size.samples)
        if self._separable(size.audit) and name not in self._of_models:
            outcome = self._by_layer(size, subject, dict(protection), seconds)
            if not self._judges_the_model(size.audit, outcome):
                return outcome
            self._of_models.add(name)  # of all layers at once, as none was measured before
        else:
            outcome = measured(subject, size.audit, self.progress, seconds)
        if outcome.whole:
            self._outcomes[key] = outcome
        return outcome

    def _by_layer(
        self, size: Preset, subject: Subject, guards: Mapping[str, Guard], seconds: float | None
    ) -> Outcome:
        """The outcome where layers are separable: those with a new guard are measured."""
        name = size.audit.name
        keys = {layer.name: (name, layer.name, guards[layer.name]) for layer in subject.layers}
        fresh = tuple(layer for layer in subject.layers if keys[layer.name] not in self._rows)
        known = [row for key in keys.values() for row in self._rows.get(key, ())]
        if not fresh:
            return Outcome(AuditRows.of(size.audit, known), 0.0)
        only = replace(subject, layers=fresh)
        outcome = measured(only, size.audit, self.progress, seconds)
        if outcome.fault is None and outcome.whole:
            for row in outcome.part.rows:
                if row.layer is not None:
                    self._rows.setdefault(keys[row.layer], []).append(row)
        return replace(outcome, part=AuditRows.of(size.audit, [*known, *outcome.part.rows]))

    def _separable(self, audit: Audit[Any]) -> bool:
        """Whether the rules judge only rows of layers that are independent of other layers."""
        asked = [
            metric
            for metric in audit.metrics
            if any(judges(r, audit, metric) for r in self.policy.rules)
        ]
        return not self.subject.defenses and all(m.per_layer and not m.relative for m in asked)

    def _judges_the_model(self, audit: Audit[Any], outcome: Outcome) -> bool:
        """Whether a rule judges a row of the whole model that the audit has."""
        rules = [rule for rule in self.policy.rules if asks(rule, audit)]
        asked = any(layer_matches(None, glob) for rule in rules for glob in rule.layers)
        return asked and any(row.layer is None for row in outcome.part.rows)


def _shared(layers: Sequence[Layer], protection: Protection) -> tuple[Layer, ...]:
    return tuple(layer for layer in layers if layer.name not in protection.hidden)


def verdict_of(judged: Report, without: Collection[int] = ()) -> ProtectionVerdict:
    """Returns a judged report's verdict on the protection under which it was measured.

    Where a floor does not apply there is none, and what is shared is beyond every limit of it: the
    layer itself, or one that it is clipped together with.

    Args:
        judged: with findings.
        without: numbers of the rules that are ignored.
    """
    shown = {layer.name for layer in judged.target.layers}
    lacking = floors_lacking(judged)
    faults = [f for f in judged.findings if f.says == "error" or f in lacking]
    faults = [f for f in faults if f.rule not in without]
    beyond = [f for f in faults if f.outcome in _JUDGED or f in lacking]
    relative = {name for name, metric in known_metrics().items() if metric.relative}
    measured = [f for f in beyond if f not in lacking]
    of_layers = [(f.layer, f.metric) for f in measured if f.layer is not None and f.layer in shown]
    return ProtectionVerdict(
        layers=frozenset(layer for layer, metric in of_layers if metric not in relative),
        relative=frozenset(layer for layer, metric in of_layers if metric in relative),
        whole=any(f.layer not in shown or f in lacking for f in beyond),
        broken="; ".join(str(f) for f in faults if f not in beyond),
        excess=_excess(judged),
        failed=tuple(str(f) for f in faults),
    )


def floors_lacking(judged: Report) -> list[Finding]:
    """Returns findings of rules on floors about shared layers without a floor."""
    rows = judged.by_key()
    return [
        finding
        for finding in judged.findings
        if finding.level == "error"
        and is_floor(finding.metric)
        and (row := rows.get(finding.key)) is not None
        and row.status == "skipped"
    ]


def shortfall(judged: Report, numbers: Collection[int]) -> float:
    """Returns how far the judged floors are beyond their limits, as a share of the limit."""
    rows = judged.by_key()
    asked = (f for f in judged.findings if f.rule in numbers and f.key in rows)
    values = ((finding, rows[finding.key].number) for finding in asked)
    return max((_beyond(f, value) for f, value in values if value is not None), default=0.0)


def lost_judgements(before: Report, now: Report) -> str:
    """Names rows that were judged before and cannot be judged now; empty without any.

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
    """Returns how far the worst row is beyond the limit of an error rule."""
    rows = judged.by_key()
    shares = [
        _beyond(finding, row.number)
        for finding in judged.findings
        if finding.level == "error"
        and finding.outcome in _JUDGED
        and (row := rows.get(finding.key)) is not None
        and row.number is not None
    ]
    return max(shares, default=None)


def _beyond(finding: Finding, value: float) -> float:
    limit = finding.limit
    assert limit is not None  # as of every rule
    sign = -1 if finding.max is None else 1
    excess = sign * (value - limit) / (abs(limit) or 1.0)
    return max(-_MOST, min(excess, _MOST)) if not math.isnan(excess) else _MOST
