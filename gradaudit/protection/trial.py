"""A trial: a protection measured on records, and judged by the policy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradaudit.audits.presets import Preset
from gradaudit.core.randomness import rng
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import AuditError
from gradaudit.judging import Policy, gate
from gradaudit.models.target import shared_parameters
from gradaudit.progress import Progress
from gradaudit.protection.guards import Protection, UndefendedUpdates
from gradaudit.protection.protection_plan import defense_specs
from gradaudit.report import Finding, Report
from gradaudit.run.runner import Run, measured
from gradaudit.subject import Subject

_JUDGED = ("failed", "unclear", "passed")


def split_records(records: Records, rounds: int, seed: int) -> list[Records]:
    """Split off half of the records for the search, and the rest into equal parts.

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


def _owners(records: Records) -> NDArray[np.int64]:
    """The owner of each record, by number; without users each record owns itself."""
    if records.users is None:
        return np.arange(len(records))
    return np.unique(records.users, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True)
class Bench:
    """Measures protections on the records of a subject.

    Attributes:
        subject: with the layers that are hidden and the defenses that apply anyway.
        presets: the audits that the policy needs, each at its chosen preset.
        policy: the rules.
        updates: of the layers.
        strict: whether what is unclear fails.
        progress: shows the audits.
    """

    subject: Subject
    presets: Sequence[Preset]
    policy: Policy
    updates: UndefendedUpdates
    strict: bool
    progress: Progress

    def judged(self, protection: Protection) -> Report:
        """Measure what is shared under a protection, and judge it by the policy."""
        subject = self.protected(protection)
        done = Run.begun(subject)
        for each in self.presets:
            sampled = replace(subject, samples=subject.samples or each.samples)
            done.outcomes.append(measured(sampled, each.audit, self.progress))
        return gate(done.report(), self.policy, strict=self.strict)

    def protected(self, protection: Protection) -> Subject:
        """The subject under a protection, without defenses of hidden layers alone."""
        specs = defense_specs(protection, self.updates)
        hidden = (*self.subject.hidden, *protection.hidden)
        names = shared_parameters(self.subject.target.model, hidden)
        kept = [defense for defense in self.subject.defenses if any(map(defense.defends, names))]
        layers = tuple(x for x in self.subject.layers if x.name not in protection.hidden)
        defenses = (*kept, *map(parse_defense, specs))
        return replace(self.subject, layers=layers, hidden=hidden, defenses=defenses)


def faults(judged: Report) -> list[Finding]:
    """Find what stands against a protection: rules of level error that are not kept."""
    return [finding for finding in judged.findings if finding.says == "error"]


def lost_judgements(before: Report, now: Report) -> list[Finding]:
    """Find rows that were judged before and cannot be judged on these records."""
    held = {(f.rule, f.key): f for f in now.findings}
    return [
        finding
        for f in before.findings
        if f.outcome in _JUDGED
        and (finding := held.get((f.rule, f.key))) is not None
        and finding.outcome == "not-applicable"
    ]


def gravest_layer(judged: Report, protection: Protection) -> str:
    """Choose the shared layer whose finding is furthest beyond its limit.

    Where only rows of the whole model are beyond a limit it is the first layer that is shared.
    """
    rows, shared = judged.by_key(), protection.shared
    excess = {
        finding.layer: _beyond(finding, row.number if row else None)
        for finding in faults(judged)
        for row in [rows.get(finding.key)]
        if finding.layer in shared
    }
    if not excess:
        return shared[0]
    return max(shared, key=lambda layer: excess.get(layer, -math.inf))


def _beyond(finding: Finding, value: float | None) -> float:
    """Compute how far a number is beyond its limit, as a share of the limit; infinite without."""
    limit = finding.limit
    if value is None or limit is None or math.isnan(value):
        return math.inf
    return (-1 if finding.max is None else 1) * (value - limit) / (abs(limit) or 1.0)
