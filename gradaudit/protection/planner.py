"""Finds a policy's plan: search on some records, verification on others, repair."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from gradaudit.audits.floor import Floor
from gradaudit.audits.presets import Preset
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, NotApplicable, UsageError
from gradaudit.judging import Policy
from gradaudit.progress import Progress
from gradaudit.protection.asking import is_floor
from gradaudit.protection.cheapest import GuardChoices, PassedProtection, ProtectionVerdict, Search
from gradaudit.protection.costs import choose_cost
from gradaudit.protection.floor_rules import FloorBounds
from gradaudit.protection.guards import HIDE, OPEN, Guard, Protection, UndefendedUpdates
from gradaudit.protection.noise_search import NoiseSearch
from gradaudit.protection.protection_plan import Plan, Trial
from gradaudit.protection.trial import (
    Bench,
    Clock,
    floors_lacking,
    half_of,
    lost_judgements,
    shortfall,
    split_records,
    verdict_of,
)
from gradaudit.report import Report
from gradaudit.subject import Subject

NOISE = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Noise deviations tried first, in root mean squares of the updates' elements."""
_UTMOST = 10.0
"""The largest deviation that is tried, over the root mean square norm of whole updates. No attacker
distinguishes an update from none with an AUROC above Φ(0.1/√2) = 0.53 then: nothing useful is
shared."""
PRUNED = (0.9, 0.99, 0.999)
"""Shares of a layer's elements that are tried for pruning."""
_UNIT = Guard("noise", 1.0)
_HALVES = 4
"""Number of random halves of the search's records on which floors are computed too. They are drawn
independently: the records that a half leaves out differ from the whole by as much in the opposite
direction."""


class Planner:
    """Plans a protection for a subject and a policy.

    Args:
        subject: model and records, with the layers that are hidden and the defenses that apply
            anyway.
        sizes: the audits that measure what the policy limits.
        policy: the rules.
        cost: the measure of cost, by name.
        means: means besides hiding: ``noise``, ``prune``.
        rounds: number of parts of the fresh records, on which a plan is verified one after another.
        strict: whether what is unclear fails.
        left: clock of the seconds that are left; some are kept for the fresh records. The first
            measurement and the one on fresh records are never cut short.
        progress: shows the trials.

    Raises:
        UsageError: there is no such cost, or a rule is about nothing that can be measured.
        AuditError: there are too few records, or no rule applies to this model and data.
    """

    def __init__(
        self,
        subject: Subject,
        sizes: Sequence[Preset],
        policy: Policy,
        *,
        cost: str = "parameters",
        means: Sequence[str] = ("noise", "prune"),
        rounds: int = 2,
        strict: bool = False,
        left: Callable[[], float],
        progress: Progress,
    ) -> None:
        measure = choose_cost(cost)
        searched, *self._fresh = split_records(subject.records, rounds, subject.seed)
        known = replace(subject, records=searched)
        self._updates = UndefendedUpdates.of(known)
        self._weights = measure.weights(subject.target, searched, self._updates)
        self._progress, self._clock = progress, Clock(left)
        self._open = Protection.uniform([layer.name for layer in subject.layers])
        loudest = Guard("noise", _rounded(_UTMOST * self._updates.length))
        self._utmost = Protection.uniform(self._open.layers, loudest)
        self._bench = Bench(known, sizes, policy, self._updates, strict)
        self._floors = _by_formula(self._bench, means)
        others = [r for n, r in enumerate(policy.rules, start=1) if n not in self._floors]
        self._measured = self._bench.of(others)
        means = [kind for kind in means if not (kind == "prune" and self._floors)]
        self._guards = (OPEN, HIDE, *_levels(means, self._updates.scale))
        self._search = Search(
            self._open.layers, self._guards, cache(self._price), self._attempt, self._clock.more
        )
        roots = {layer: self._updates.size(layer) for layer in self._open.layers}
        with self._clock.opening():
            self._expect_rules()
            bounds = self._bounds(searched) if self._floors else FloorBounds()
        if bounds.floors:
            bounds = bounds.varied(list(self._halves()), rounds)
        self._noise_search = NoiseSearch(bounds, self._weights, roots, self._clock.more)

    def plan(self) -> Plan:
        """Search a plan, verify it on fresh records, and repair it where it fails there.

        Each part of the records verifies once, so no verdict rests on records that had a say.
        """
        self._search.attempt(self._open)
        self._search.best(("open", "hide"))
        self._probe()
        for number, records in enumerate(self._fresh, start=1):
            best = self._search.best() or self._louder()
            protection = best and self._cheapest(best.protection)
            if not (best and protection):
                return self._nothing()
            judged = self._bench.anew(records).judged(protection)
            verdict = self._verdict(judged, protection)
            plan = self._plan(protection, best.least, judged, verdict, number)
            self._progress.say(f"on fresh records: {_words(verdict)}")
            if verdict.passed:
                return plan
            self._search.learn(protection, self._verdict(judged, protection, self._floors))
            self._noise_search.learn(shortfall(judged, self._floors))
        return plan

    def _probe(self) -> None:
        """Try the strongest level of each means on all layers, which shows useless means."""
        if self._search.tried[self._open].passed:
            return
        for _, chain in self._chains():
            strongest = chain[-1]
            if not strongest.hidden and self._clock.more():
                self._search.attempt(strongest)

    def _louder(self) -> PassedProtection | None:
        """Returns the cheapest passing plan with more noise than the levels; None without any.

        The utmost noise on all layers is tried whatever the time. Where it passes, the least that
        does is found by bisection, down to the highest level.
        """
        if not any(guard.kind == "noise" for guard in self._guards) or self._floors:
            return None
        guards, utmost = {*self._guards, *self._utmost.guards}, self._utmost
        if self._search.attempt(utmost).passed and self._search.allowed(utmost):
            guards |= {*self._search.eased(utmost, utmost.layers).guards}
        self._guards = (*self._guards, *sorted(guards - {*self._guards}))
        self._search.choices = GuardChoices(utmost.layers, self._guards, cache(self._price))
        return self._search.best()

    def _cheapest(self, passed: Protection) -> Protection | None:
        """Adds the noise that the floors need, and removes guards that it makes needless.

        No simple strategy that passes is cheaper.
        """
        cost = self._search.choices.cost
        for layer, guard in passed:
            if guard.kind == "noise":
                passed = self._search.eased(passed, [layer])
        plan = self._noise_search.completed(passed)
        naive = [protection for protection, _ in self._naive().values() if protection.shared]
        plan = min([*([plan] if plan else []), *naive], key=cost, default=None)
        if not self._floors or plan is None:
            return plan
        for layer in [name for name, guard in passed if guard != OPEN]:
            other = self._noise_search.completed(passed.with_guard(layer, OPEN))
            if other and cost(other) < cost(plan) and self._search.passes(other):
                passed, plan = passed.with_guard(layer, OPEN), other
        return plan

    def _naive(self) -> dict[str, tuple[Protection, float]]:
        """Runs trials of the simple strategies, as far as there is time."""
        costs, kept = self._search.choices.cost, {}
        for name, chain in self._chains():
            if cheapest := self._search.cheapest_of(chain):
                if cheapest.guards[0].kind == "noise" and not self._floors:
                    cheapest = self._search.eased(cheapest, cheapest.layers)
                kept[name] = (cheapest, costs(cheapest))
        return kept

    def _chains(self) -> Iterator[tuple[str, list[Protection]]]:
        """Yields simple strategies that keep the floors, each from the least to the most.

        The most may be to share nothing.
        """
        for name, chain in self._strategies():
            if kept := [protection for protection in chain if self._noise_search.holds(protection)]:
                yield name, kept

    def _strategies(self) -> Iterator[tuple[str, list[Protection]]]:
        layers = self._open.layers
        counts = range(len(layers) + 1)
        yield "first layers", [self._open.hiding(layers[:n]) for n in counts]
        yield "last layers", [self._open.hiding(layers[n:]) for n in reversed(counts)]
        enough = self._noise_search.uniform(layers)
        for kind, name in (("noise", "uniform noise"), ("prune", "uniform pruning")):
            levels = {guard for guard in self._guards if guard.kind == kind}
            levels |= {enough} if enough and kind == "noise" else set()
            if levels:
                yield name, [self._open, *(Protection.uniform(layers, g) for g in sorted(levels))]

    def _verdict(
        self, judged: Report, protection: Protection, without: Sequence[int] = ()
    ) -> ProtectionVerdict:
        """Return the policy's verdict on other records, without the rules of these numbers."""
        verdict = verdict_of(judged, without=without)
        lost = lost_judgements(self._bench.judged(protection), judged)
        broken = "; ".join(filter(None, [verdict.broken, lost]))
        return replace(verdict, broken=broken, failed=(*verdict.failed, *([lost] if lost else [])))

    def _plan(
        self,
        protection: Protection,
        least: float,
        judged: Report,
        verdict: ProtectionVerdict,
        rounds: int,
    ) -> Plan:
        search, cost = self._search, self._search.choices.cost
        tried = ((p, v) for p, v in search.tried.items() if self._noise_search.holds(p))
        return Plan(
            protection=protection,
            cost=cost(protection),
            least=min(least, cost(protection)) if verdict.passed else least,
            naive=self._naive() if verdict.passed else {},
            judged=judged,
            verdict=verdict,
            trials=[Trial(p, cost(p), v) for p, v in tried],
            rounds=rounds,
            untried=not verdict.passed and search.choices.cheapest(search.failures) is not None,
            prices={layer: self._price(layer, HIDE) for layer in self._open.layers},
            updates=self._updates,
        )

    def _nothing(self) -> Plan:
        """Returns the trial with fewest rows beyond their limits, where none passes."""
        tried, choices = self._search.tried, self._search.choices
        nearest = min(tried, key=lambda p: (len(tried[p].failed), choices.cost(p)))
        judged = self._bench.judged(nearest)
        left = choices.cheapest(self._search.failures) or self._open.hiding(self._open.layers)
        return self._plan(nearest, choices.cost(left), judged, verdict_of(judged), 0)

    def _price(self, layer: str, guard: Guard) -> float:
        return self._weights[layer] * self._updates.lost(layer, guard)

    def _attempt(self, protection: Protection) -> ProtectionVerdict:
        """Measure a protection unless it shares nothing, which needs no measurement."""
        if not (protection.shared and self._measured.policy.rules):
            return ProtectionVerdict()
        with self._clock.trial() as seconds:
            limit = None if protection in (self._open, self._utmost) else seconds
            verdict = verdict_of(self._measured.judged(protection, limit))
        self._clock.satisfied |= verdict.passed
        cost = self._search.choices.cost(protection)
        self._progress.say(f"trial: cost {cost:.1%}, {_words(verdict)}")
        return verdict

    def _expect_rules(self) -> None:
        """Raise an error where a rule has nothing to judge while nothing is protected.

        Raises:
            UsageError: a rule has no row at all.
            AuditError: no rule applies.
        """
        policy = self._measured.policy
        if not policy.rules:
            return
        judged = self._measured.judged(self._open)
        lacking = floors_lacking(judged)
        for finding in (rule for rule in judged.findings if rule not in lacking):
            if finding.rule and finding.says == "error" and finding.outcome == "unmeasured":
                raise UsageError(f"{policy.name}: {finding}; correct the rule, or name the audit")
        outcomes = {finding.outcome for finding in judged.findings}
        if not (lacking or outcomes & {"failed", "unclear", "passed"}):
            reasons = sorted({finding.message for finding in judged.findings if finding.rule})
            raise AuditError(f"{policy.name}: no rule has a number to judge: {'; '.join(reasons)}")

    def _bounds(self, records: Records) -> FloorBounds:
        """Returns the rules on floors for any noise, with the prior of these records.

        Raises:
            AuditError: there are no floors of such a model and data.
        """
        rules = [self._bench.policy.rules[number - 1] for number in self._floors]
        ((audit, samples),) = _floors(self._bench.sizes)
        subject = self._bench.protected(Protection.uniform(self._open.layers, _UNIT))
        subject = replace(subject, records=records, samples=subject.samples or samples)
        try:
            return FloorBounds.of(audit, subject, rules, self._progress)
        except NotApplicable as why:
            raise AuditError(f"{self._bench.policy.name}: no floor: {why}") from why

    def _halves(self) -> Iterator[FloorBounds]:
        records, seed = self._bench.subject.records, self._bench.subject.seed
        for number in range(_HALVES):
            yield self._bounds(half_of(records, seed, number))


def _floors(sizes: Sequence[Preset]) -> list[tuple[Floor, int | None]]:
    """The audit of floors and its samples, where there is a rule on them."""
    return [(size.audit, size.samples) for size in sizes if isinstance(size.audit, Floor)]


def _by_formula(bench: Bench, means: Sequence[str]) -> tuple[int, ...]:
    """Numbers of the rules on floors; none unless the plan may add noise.

    Floors under noise that is there anyway are measured as everything is.
    """
    audits = [audit for audit, _ in _floors(bench.sizes)]
    noisy = bench.subject.defenses or any(audit.options.sigma for audit in audits)
    if noisy or "noise" not in means:
        return ()
    numbered = enumerate(bench.policy.rules, start=1)
    return tuple(n for n, rule in numbered if rule.level == "error" and is_floor(rule.metric))


def _levels(means: Sequence[str], scale: float) -> Iterator[Guard]:
    if "noise" in means:
        yield from (Guard("noise", _rounded(level * scale)) for level in NOISE)
    if "prune" in means:
        yield from (Guard("prune", share) for share in PRUNED)


def _rounded(amount: float) -> float:
    return float(f"{amount:.3g}")


def _words(verdict: ProtectionVerdict) -> str:
    if verdict.passed:
        return "no row is beyond its limit"
    return f"{len(verdict.failed)} rows beyond their limits, such as {verdict.failed[0]}"
