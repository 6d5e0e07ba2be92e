"""From a policy to a plan: search on some records, verification on others, repair."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradaudit.audits.sizes import Size
from gradaudit.data.records import Records
from gradaudit.defenses.subject import Subject
from gradaudit.errors import AuditError, UsageError
from gradaudit.judging import Policy
from gradaudit.progress import Progress
from gradaudit.protection.costs import choose_cost
from gradaudit.protection.guards import HIDE, OPEN, Guard, Protection
from gradaudit.protection.lessons import Verdict
from gradaudit.protection.search import Search
from gradaudit.protection.trial import Bench, unlooked
from gradaudit.protection.updates import Updates
from gradaudit.randomness import rng
from gradaudit.report import Report
from gradaudit.units import NOTHING_KEPT, Units

NOISE = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Deviations that are tried, over the root mean square of the updates' elements."""
PRUNED = (0.9, 0.99, 0.999)
"""Shares of a layer's elements that are tried."""
_RESERVE = 1.5
"""Of the longest trial, the time that must be left for another to be begun."""
_EVERYWHERE = 5.0
"""Of the first measurement, what one takes with noise on all layers, whose clip couples them: no
layer's update can be formed by itself."""


@dataclass(frozen=True)
class Trial:
    """A protection that was measured while the plan was searched for."""

    protection: Protection
    cost: float
    verdict: Verdict


@dataclass(frozen=True)
class Plan:
    """What was found.

    Attributes:
        protection: the plan; where none passes, the nearest.
        cost: of it.
        least: what every protection that passes costs at least.
        naive: the cheapest of each simple strategy that passes, by its name, with its cost.
        judged: the report of the plan on records that the search did not see.
        verdict: what the rules say of it there.
        trials: on the search's records, in order.
        rounds: how often it was verified.
        untried: whether protections that may pass were left untried for want of time.
        prices: what hiding each layer costs.
        updates: what the layers share.
    """

    protection: Protection
    cost: float
    least: float
    naive: Mapping[str, tuple[Protection, float]]
    judged: Report
    verdict: Verdict
    trials: Sequence[Trial]
    rounds: int
    untried: bool
    prices: Mapping[str, float]
    updates: Updates

    @property
    def cheapest_naive(self) -> tuple[str, float] | None:
        """The best simple strategy and what it costs; None where none passes."""
        costs = [(name, cost) for name, (_, cost) in self.naive.items()]
        return min(costs, key=lambda pair: pair[1], default=None)


class Planner:
    """Plans for a subject and a policy.

    Args:
        subject: model, records, and what is hidden and defended anyway.
        sizes: the audits that measure what the policy limits.
        policy: the rules.
        cost: the measure of cost, by name.
        means: what may be done besides hiding: ``noise``, ``prune``.
        rounds: parts of the records that a plan is verified on, one after the other.
        strict: whether what is unclear fails.
        left: seconds that are left. What is measured in the open at first, and on fresh records at
            last, is not cut short; beyond the time trials go on until one passes, for as long as
            the first measurement took at most.
        progress: who is told of trials.
        units: where finished work is kept.

    Raises:
        UsageError: there is no such cost, or a rule is about nothing that can be measured.
        AuditError: there are too few records, or no rule applies to this model and data.
    """

    def __init__(
        self,
        subject: Subject,
        sizes: Sequence[Size],
        policy: Policy,
        *,
        cost: str = "parameters",
        means: Sequence[str] = ("noise", "prune"),
        rounds: int = 2,
        strict: bool = False,
        left: Callable[[], float],
        progress: Progress,
        units: Units = NOTHING_KEPT,
    ) -> None:
        measure = choose_cost(cost)
        searched, *self._fresh = parted(subject.records, rounds, subject.seed)
        known = replace(subject, records=searched)
        self._updates = Updates.of(known)
        self._weights = measure.weights(subject.target, searched, self._updates)
        layers = [layer.name for layer in subject.layers]
        self._bench = Bench(known, sizes, policy, self._updates, strict, units=units)
        self._progress, self._left = progress, left
        self._slowest = 0.0
        self._guards = (OPEN, HIDE, *_levels(means, self._updates.scale))
        self._search = Search(layers, self._guards, self._price, self._attempt, self._more)
        self._open = Protection.uniform(layers)
        begun = time.monotonic()
        _expect_rules(self._bench.judged(self._open), policy)
        opened = time.monotonic()
        self._opening = opened - begun
        self._patience = opened + self._opening

    def plan(self) -> Plan:
        """Search, verify on fresh records, and repair where it fails there.

        Each part of the records verifies once, so no verdict rests on records that had a say.
        """
        self._search.attempt(self._open)
        self._search.best(("open", "hide"))
        self._probe()
        for number, records in enumerate(self._fresh, start=1):
            if (found := self._search.best()) is None:
                return self._nothing()
            judged, verdict = self._verified(found.protection, records)
            plan = self._plan(found.protection, found.least, judged, verdict, number)
            self._progress.say(f"on fresh records: {_words(verdict)}")
            if verdict.passed:
                return plan
            self._search.learn(found.protection, verdict)
        return plan

    def _probe(self) -> None:
        """Try the most of each means on all layers, which says what is of no use."""
        if self._search.tried[self._open].passed:
            return
        for _, chain in self._chains():
            strongest = chain[-1]
            if not strongest.hidden and self._more():
                self._search.attempt(strongest)

    def _naive(self) -> dict[str, tuple[Protection, float]]:
        """What simple strategies come to, as far as there is time."""
        found = {name: self._search.cheapest_of(chain) for name, chain in self._chains()}
        costs = self._search.choices.cost
        return {name: (each, costs(each)) for name, each in found.items() if each}

    def _chains(self) -> Iterator[tuple[str, list[Protection]]]:
        """Simple strategies, each from nothing to its most, which may be to share nothing.

        The same for all layers is left out where the time is too short for it.
        """
        layers = self._open.layers
        counts = range(len(layers) + 1)
        yield "first layers", [self._open.hiding(layers[:n]) for n in counts]
        yield "last layers", [self._open.hiding(layers[n:]) for n in reversed(counts)]
        if self._left() < _EVERYWHERE * self._opening:
            return
        for kind, name in (("noise", "uniform noise"), ("prune", "uniform pruning")):
            levels = sorted(guard for guard in self._guards if guard.kind == kind)
            if levels:
                yield name, [self._open, *(Protection.uniform(layers, g) for g in levels)]

    def _verified(self, protection: Protection, records: Records) -> tuple[Report, Verdict]:
        bench = self._bench.anew(records)
        judged = bench.judged(protection)
        verdict = bench.verdict(protection)
        lost = unlooked(self._bench.judged(protection), judged)
        broken = "; ".join(filter(None, [verdict.broken, lost]))
        failed = (*verdict.failed, lost) if lost else verdict.failed
        return judged, replace(verdict, broken=broken, failed=failed)

    def _plan(
        self,
        protection: Protection,
        least: float,
        judged: Report,
        verdict: Verdict,
        rounds: int,
    ) -> Plan:
        search = self._search
        return Plan(
            protection=protection,
            cost=search.choices.cost(protection),
            least=least,
            naive=self._naive() if verdict.passed else {},
            judged=judged,
            verdict=verdict,
            trials=[Trial(p, search.choices.cost(p), v) for p, v in search.tried.items()],
            rounds=rounds,
            untried=not verdict.passed and search.choices.cheapest(search.lessons) is not None,
            prices={layer: self._price(layer, HIDE) for layer in self._open.layers},
            updates=self._updates,
        )

    def _nothing(self) -> Plan:
        """Where nothing passes: the trial with fewest rows beyond their limits."""
        tried = self._search.tried
        nearest = min(tried, key=lambda p: (len(tried[p].failed), self._search.choices.cost(p)))
        return self._plan(nearest, 0.0, self._bench.judged(nearest), tried[nearest], 0)

    def _price(self, layer: str, guard: Guard) -> float:
        return self._weights[layer] * self._updates.lost(layer, guard)

    def _attempt(self, protection: Protection) -> Verdict:
        """Measure it, unless nothing is shared under it, of which there is nothing to say."""
        if not protection.shared:
            return Verdict()
        begun = time.monotonic()
        verdict = self._bench.verdict(protection)
        self._slowest = max(self._slowest, time.monotonic() - begun)
        cost = self._search.choices.cost(protection)
        self._progress.say(f"trial: cost {cost:.1%}, {_words(verdict)}")
        return verdict

    def _more(self) -> bool:
        left = self._left()
        if self._search.cheapest_passed() is None:
            left = max(left, self._patience - time.monotonic())
        return left > _RESERVE * self._slowest


def parted(records: Records, rounds: int, seed: int) -> list[Records]:
    """Half of the records for the search, and as many equal parts of the others as asked for.

    No user is in two of them.

    Raises:
        AuditError: there are fewer records, or users, than parts.
    """
    owners = np.arange(len(records)) if records.users is None else _codes(records.users)
    order = rng(seed, "protection", "parts").permutation(owners.max() + 1)
    if len(order) < 2 * (rounds + 1):
        raise AuditError(f"{len(order)} records or users are too few for a search and {rounds}")
    half = len(order) // 2
    groups = [order[:half], *np.array_split(order[half:], rounds)]
    return [records.take(np.flatnonzero(np.isin(owners, group))) for group in groups]


def _codes(users: NDArray[np.str_]) -> NDArray[np.int64]:
    return np.unique(users, return_inverse=True)[1].astype(np.int64)


def _levels(means: Sequence[str], scale: float) -> Iterator[Guard]:
    if "noise" in means:
        yield from (Guard("noise", float(f"{level * scale:.3g}")) for level in NOISE)
    if "prune" in means:
        yield from (Guard("prune", share) for share in PRUNED)


def _words(verdict: Verdict) -> str:
    if verdict.passed:
        return "passes"
    return f"{len(verdict.failed)} rows beyond their limits, such as {verdict.failed[0]}"


def _expect_rules(judged: Report, policy: Policy) -> None:
    """Look whether every rule has something to judge while nothing is protected.

    Raises:
        UsageError: a rule has no row at all.
        AuditError: no rule applies.
    """
    for finding in judged.findings:
        if finding.says == "error" and finding.outcome == "unmeasured":
            raise UsageError(f"{policy.name}: {finding}; correct the rule, or name the audit")
    if not any(finding.outcome in ("failed", "unclear", "passed") for finding in judged.findings):
        reasons = sorted({finding.message for finding in judged.findings})
        raise AuditError(f"{policy.name}: no rule has a number to judge: {'; '.join(reasons)}")
