"""Plans a protection greedily on some records, and verifies it on others."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gradaudit.audits.presets import Preset
from gradaudit.errors import AuditError, UsageError
from gradaudit.judging import Policy
from gradaudit.progress import Progress
from gradaudit.protection.guards import CostName, Protection, UndefendedUpdates, prices
from gradaudit.protection.protection_plan import Plan
from gradaudit.protection.trial import (
    Bench,
    faults,
    gravest_layer,
    lost_judgements,
    split_records,
)
from gradaudit.report import Finding, Report
from gradaudit.subject import Subject

_UTMOST, _LEAST = 10.0, 1e-4
"""Largest and least deviation of noise, over the root mean square norm of whole updates. Under the
largest no attacker distinguishes an update from none with an AUROC above Φ(0.1/√2) = 0.53."""
_HALVINGS = 8
_NAIVE = ("first layers", "last layers")
"""Simple strategies that a plan is set beside: hide as few of these as pass."""


class Planner:
    """Plans a protection for a subject and a policy.

    Args:
        subject: model and records, with the layers that are hidden and the defenses that apply
            anyway.
        presets: the audits that measure what the policy limits.
        policy: the rules.
        cost: what the plan keeps low.
        means: ``noise`` besides hiding.
        rounds: parts of the held-out records, on which a plan is verified one after another.
        strict: whether what is unclear fails.
        left: clock of the seconds that are left.
        progress: shows the trials.

    Raises:
        UsageError: a rule is about nothing that can be measured.
        AuditError: there are too few records, or no rule applies to this model and data.
    """

    def __init__(
        self,
        subject: Subject,
        presets: Sequence[Preset],
        policy: Policy,
        *,
        cost: CostName = "parameters",
        means: Sequence[str] = ("noise",),
        rounds: int = 2,
        strict: bool = False,
        left: Callable[[], float],
        progress: Progress,
    ) -> None:
        self._searched, *self._held_out = (
            replace(subject, records=part)
            for part in split_records(subject.records, rounds, subject.seed)
        )
        self._updates = UndefendedUpdates.of(self._searched)
        self._utmost = _rounded(_UTMOST * self._updates.length)
        self._prices = prices(cost, subject.target.model, self._updates)
        self._open = Protection(tuple(layer.name for layer in subject.layers))
        self._how = presets, policy, self._updates, strict, progress
        self._left, self._progress, self._means = left, progress, means
        self._reports: dict[Protection, Report] = {}
        self._expect_rules()

    def plan(self) -> Plan:
        """Plan on the search's records, verify on held-out ones, and harden what fails there."""
        candidates = dict(self._candidates())
        naive = {name: self._cost(candidates[name]) for name in _NAIVE if name in candidates}
        if not candidates:
            failing = {p: len(faults(judged)) for p, judged in self._reports.items()}
            nearest = min(failing, key=lambda p: (failing[p], self._cost(p)))
            judged = self._reports[nearest]
            return self._made(nearest, naive, judged, faults(judged), 0)
        protection = min(candidates.values(), key=self._cost)
        for number, subject in enumerate(self._held_out, start=1):
            judged = Bench(subject, *self._how).judged(protection)
            against = [*faults(judged), *lost_judgements(self._judged(protection), judged)]
            plan = self._made(protection, naive, judged, against, number)
            self._progress.say(f"on fresh records: {len(against)} rules fail")
            if not against:
                return plan
            protection = self._harder(protection, judged)
            if not protection.shared:
                return plan
        return plan

    def _candidates(self) -> Iterator[tuple[str, Protection]]:
        """Yield the protections that pass and share something, by how they were found."""
        if hidden := self._hiding(self._open):
            yield "hide", hidden
        loudest = replace(self._open, noise=self._utmost)
        blurs = "noise" in self._means and hidden != self._open
        if blurs and (blurred := self._hiding(loudest)):
            yield "noise", self._less_noise(blurred)
        layers = self._open.layers
        for name, order in zip(_NAIVE, (layers, layers[::-1]), strict=True):
            if naive := self._fewest(order):
                yield name, naive

    def _hiding(self, protection: Protection) -> Protection | None:
        """Hide the layer with the gravest finding until the policy passes, while time lasts."""
        while not self._passes(protection):
            protection = protection.hiding([gravest_layer(self._judged(protection), protection)])
            if not protection.shared or self._left() <= 0:
                return None
        return protection

    def _less_noise(self, blurred: Protection) -> Protection:
        """Bisect the least noise, in its logarithm, with which the protection passes."""
        low, high = _LEAST * self._updates.length, self._utmost
        for _ in range(_HALVINGS):
            if self._left() <= 0:
                break
            middle = _rounded(math.sqrt(low * high))
            tried = replace(blurred, noise=middle)
            if self._passes(tried):
                blurred, high = tried, middle
            else:
                low = middle
        return blurred

    def _fewest(self, order: Sequence[str]) -> Protection | None:
        """Bisect how many layers of an order are to be hidden so that the policy passes."""
        known = [n for n, p in enumerate(map(self._open.hiding, _starts(order))) if self._known(p)]
        low, high = -1, min(known, default=len(order))
        while high - low > 1 and self._left() > 0:
            middle = (low + high) // 2
            if self._passes(self._open.hiding(order[:middle])):
                high = middle
            else:
                low = middle
        return self._open.hiding(order[:high]) if high < len(order) else None

    def _harder(self, protection: Protection, judged: Report) -> Protection:
        """Double the noise where there is some, else hide the layer with the gravest finding."""
        if 0 < protection.noise < self._utmost:
            return replace(protection, noise=min(_rounded(2 * protection.noise), self._utmost))
        return protection.hiding([gravest_layer(judged, protection)])

    def _passes(self, protection: Protection) -> bool:
        return not faults(self._judged(protection))

    def _known(self, protection: Protection) -> bool:
        return protection in self._reports and self._passes(protection)

    def _judged(self, protection: Protection) -> Report:
        if protection not in self._reports:
            judged = Bench(self._searched, *self._how).judged(protection)
            self._reports[protection] = judged
            failed = len(faults(judged))
            self._progress.say(f"trial: cost {self._cost(protection):.1%}, {failed} rules fail")
        return self._reports[protection]

    def _cost(self, protection: Protection) -> float:
        return sum(self._prices[n] * self._updates.lost(n, protection) for n in protection.layers)

    def _made(
        self,
        protection: Protection,
        naive: dict[str, float],
        judged: Report,
        against: Sequence[Finding],
        rounds: int,
    ) -> Plan:
        return Plan(
            protection=protection,
            cost=self._cost(protection),
            naive=naive,
            judged=judged,
            failed=tuple(map(str, against)),
            trials=len(self._reports),
            rounds=rounds,
            out_of_time=self._left() <= 0,
            prices=self._prices,
            updates=self._updates,
        )

    def _expect_rules(self) -> None:
        """Raise an error where a rule has nothing to judge while nothing is protected.

        Raises:
            UsageError: a rule has no row at all.
            AuditError: no rule applies.
        """
        judged = self._judged(self._open)
        presets, policy = self._how[:2]
        promised = {
            f"{each.audit.reports_as()}.{metric.id}"
            for each in presets
            for metric in each.audit.metrics
            if metric.guarantee
        }
        for finding in faults(judged):
            known = not finding.rule or finding.metric in promised
            if finding.outcome == "unmeasured" and not known:
                raise UsageError(f"{policy.name}: {finding}; correct the rule, or name the audit")
        outcomes = {finding.outcome for finding in judged.findings}
        if not outcomes & {"failed", "unclear", "passed", "unmeasured"}:
            reasons = sorted({finding.message for finding in judged.findings if finding.rule})
            raise AuditError(f"{policy.name}: no rule has a number to judge: {'; '.join(reasons)}")


def _starts(order: Sequence[str]) -> list[Sequence[str]]:
    return [order[:count] for count in range(len(order))]


def _rounded(value: float) -> float:
    """The value to three digits, as it is written into options."""
    return float(f"{value:.3g}")
