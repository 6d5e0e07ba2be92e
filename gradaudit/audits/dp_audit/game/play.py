"""Plays the game: fixes the bound before the trials, releases under both hypotheses, then bounds.

For every release a fair coin picks the hypothesis, so that nothing which drifts or is carried on
from release to release goes with either. What is left of such dependence is tested
(``statistics.serial``); releases that depend on each other give no bound.

Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning" (2024),
definition 7.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gradaudit.audits.dp_audit.game.hypotheses import (
    Hypotheses,
    ReleaseStatistics,
    known_statistics,
    laws_of,
    pilot_ruler,
    score_releases,
)
from gradaudit.audits.dp_audit.game.missing_noise import with_further
from gradaudit.audits.dp_audit.law.bounds import LowerBound, guesses_ceiling
from gradaudit.audits.dp_audit.law.decision import (
    Decision,
    Law,
    Laws,
    PilotLaw,
    Samples,
    Statistic,
    best_decision,
)
from gradaudit.audits.dp_audit.law.estimates import (
    GaussianBound,
    PointEstimate,
    epsilon_point,
    gaussian_bound,
)
from gradaudit.audits.dp_audit.law.theory import FloatArray
from gradaudit.audits.dp_audit.mechanisms import Mechanism, ReleaseLaw
from gradaudit.core.randomness import Seed, rng, sequence
from gradaudit.core.statistics.serial import depends
from gradaudit.errors import UsageError
from gradaudit.progress import Advance

Mode = Literal["implementation", "exact"]

MIN_TRIALS, PILOT_SHARE = 100, 4
"""Least number of trials, and number of trials for each pilot release."""
GAUSSIAN_TRIALS = 1000
"""Fewer let a Laplace or logistic law pass for the declared Gaussian one (in 15 to 89 % of runs of
100 to 200)."""
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
_CLEARLY, _MORE = 1.05, 0.1
"""What a further statistic's expected bound is above that of the projection: so many times, and so
much more."""
HEADLINE_SHARE = 0.9
"""Of α, for the statistic that is asked for; the rest is the other's (Bonferroni, weighted)."""


@dataclass(frozen=True)
class Rules:
    """The rules of a game, fixed before it begins.

    ``trials`` releases under each hypothesis count, in expectation; the mechanism is run, or
    (``exact``) the law of its statistics sampled. The confidence is 1 − α of all ``comparisons``
    together, games whose bounds hold at once, and ``statistic`` the one that is asked for. A chunk
    of releases takes ``memory`` bytes at most.
    """

    trials: int
    delta: float
    mode: Mode = "implementation"
    confidence: float = 0.95
    comparisons: int = 1
    memory: int = 1 << 28
    statistic: Statistic = "projection"

    def __post_init__(self) -> None:
        if self.trials < MIN_TRIALS:
            raise UsageError(f"--trials {self.trials}: too few; give at least {MIN_TRIALS}")

    @property
    def alpha(self) -> float:
        """The error probability of the game's bound."""
        return (1 - self.confidence) / self.comparisons

    @property
    def pilots(self) -> int:
        """Number of pilot releases under each hypothesis that set a threshold, or a direction."""
        return -(-self.trials // PILOT_SHARE)

    def alpha_of(self, statistic: Statistic) -> float:
        """Compute the error probability of one statistic's bound."""
        share = HEADLINE_SHARE if statistic == self.statistic else 1 - HEADLINE_SHARE
        return share * self.alpha

    @property
    def ceiling(self) -> float:
        """Compute the largest bound that the game can give."""
        alpha = self.alpha_of(self.statistic)
        return guesses_ceiling(2 * self.trials, delta=self.delta, alpha=alpha)


@dataclass(frozen=True)
class StatisticResult:
    """The trials and the bound of one statistic.

    Its value in each trial under the null hypothesis, and under the alternative; the lower bound on
    epsilon, and the paper's estimate, no bound.
    """

    null: FloatArray
    alternative: FloatArray
    bound: LowerBound
    point: PointEstimate


@dataclass(frozen=True)
class TrialsResult:
    """The results of all statistics of a game's trials.

    ``gaussian`` is the bound that holds if the noise is Gaussian; None where that is not declared,
    the trials are too few, the alternative is a mixture, or the projection does not vary.
    ``pilots`` releases under each hypothesis, in expectation, were spent on thresholds and
    direction, ``decided_by`` the known law or a pilot. Where the releases are ``dependent`` on each
    other, nothing here is a bound. ``reads`` says in words which statistic took the projection's
    place, as it separated the pilot's releases better; empty where none did.
    """

    scores: dict[Statistic, StatisticResult]
    gaussian: GaussianBound | None
    pilots: int
    decided_by: Literal["law", "pilot"]
    dependent: bool = False
    reads: str = ""


@dataclass(frozen=True)
class TrialSeries:
    """Trials in the order in which they were played.

    ``coins``, (releases,) bool, say whether a fair coin picked the alternative; statistics are
    (releases,).
    """

    coins: NDArray[np.bool_]
    statistics: dict[str, FloatArray]

    def samples(self, name: str) -> Samples:
        """A statistic under the null hypothesis, and under the alternative."""
        series = self.statistics[name]
        return series[~self.coins], series[self.coins]

    def dependent(self, seed: Seed) -> bool:
        """Whether releases depend on those before them (a false alarm in a thousand)."""
        return depends(list(self.statistics.values()), self.coins, rng(seed, "dependence"))


Draw = Callable[[int, Seed, Advance], TrialSeries]
"""Draws twice so many releases, each under a hypothesis that a fair coin of its own picks."""


def trials_of_releases(
    mechanism: Mechanism,
    hypotheses: Hypotheses,
    statistics: ReleaseStatistics,
    memory: int,
    workers: int,
    trials: int,
    seed: Seed,
    advance: Advance,
) -> TrialSeries:
    """Play trials: release under the null hypothesis, or with a random alternative value."""
    coins = fair_coins(2 * trials, rng(seed, "coins"))
    values = len(hypotheses.alternatives)
    others = rng(seed, "values").integers(1, values + 1, len(coins))
    game = mechanism, hypotheses.batches, statistics, np.where(coins, others, 0)
    of_releases = sequence(seed, "releases")
    scores = score_releases(*game, of_releases, memory=memory, advance=advance, workers=workers)
    return TrialSeries(coins, dict(zip(statistics.names, scores, strict=True)))


def trials_of_laws(laws: Laws, trials: int, seed: Seed, advance: Advance) -> TrialSeries:
    """Sample the laws of the statistics, independently of each other."""
    coins, generator = fair_coins(2 * trials, rng(seed, "coins")), rng(seed, "laws")
    counts = len(coins) - int(coins.sum()), int(coins.sum())
    statistics: dict[str, FloatArray] = {}
    for name, law in laws.items():
        samples = law.sample(max(counts), generator)
        statistics[name] = np.empty(len(coins))
        for side, sample, count in zip((~coins, coins), samples, counts, strict=True):
            statistics[name][side] = sample[:count]
    advance(len(coins))
    return TrialSeries(coins, statistics)


def fair_coins(count: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Independent coins, (count,)."""
    return generator.integers(2, size=count).astype(bool)


def play(
    mechanism: Mechanism,
    hypotheses: Hypotheses,
    rules: Rules,
    seed: Seed,
    advance: Advance = lambda units: None,
    workers: int = 1,
) -> TrialsResult:
    """Play the game.

    Method and thresholds come from the law where it is known and the releases are drawn here, and
    else from a pilot. Neither sees a trial. The hypotheses' gradients differ; ``advance`` hears of
    every trial, of both hypotheses, in which the workers share.

    Raises:
        UsageError: exact mode for a mechanism whose statistics have no closed law.
        AuditError: a mechanism from a file fails.
    """
    # a law is that of one size of batch, and both hypotheses have their own
    law = None if hypotheses.removed else expect_law(mechanism, hypotheses.records, rules.mode)
    if law is not None:
        statistics, pilots = known_statistics(law, hypotheses), 0
    else:
        for_statistics, pilots = sequence(seed, "ruler"), rules.pilots
        statistics = pilot_ruler(mechanism, hypotheses, pilots, for_statistics, rules.memory)
    laws = laws_of(law, hypotheses, statistics)
    known = bool(laws) and (rules.mode == "exact" or not mechanism.foreign)

    def draw(statistics: ReleaseStatistics) -> Draw:
        game = mechanism, hypotheses, statistics, rules.memory, workers
        return partial(trials_of_releases, *game)

    if known:
        reads, decisions = "", decide_by_law(laws, rules)
    else:
        pilots += rules.pilots
        if mechanism.foreign:
            statistics = with_further(mechanism, hypotheses, statistics, sequence(seed, "looks"))
        reads, decisions = choose_statistics(draw(statistics), rules, seed)
    exact = rules.mode == "exact"
    trials = partial(trials_of_laws, laws) if exact else draw(statistics.only(reads))
    series = trials(rules.trials, sequence(seed, "trials"), advance)
    return TrialsResult(
        scores=score(series, decisions, rules, reads),
        gaussian=_gaussian(mechanism, hypotheses, series.samples("projection"), rules),
        pilots=pilots,
        decided_by="law" if known else "pilot",
        dependent=mechanism.foreign and not known and series.dependent(seed),
        reads=reads,
    )


def expect_law(mechanism: Mechanism, records: int, mode: Mode) -> ReleaseLaw | None:
    """Look up the law of a batch's release; None where none is known or needed.

    Raises:
        UsageError: the exact mode needs Gaussian noise, or the noise has no simple law.
    """
    law = mechanism.law(records)
    if mode == "exact" and (law is None or law.noise != "gaussian"):
        raise UsageError(
            f"--mode exact: {mechanism.description} is not known to add Gaussian noise; "
            "use --mode implementation"
        )
    return law


def decide_by_law(laws: Mapping[Statistic, Law], rules: Rules) -> dict[Statistic, Decision]:
    """Choose each statistic's method and thresholds, before the trials."""
    return {
        name: best_decision(law, rules.trials, delta=rules.delta, alpha=rules.alpha_of(name))
        for name, law in laws.items()
    }


def choose_statistics(
    draw: Draw, rules: Rules, seed: Seed
) -> tuple[str, dict[Statistic, Decision]]:
    """Choose which further statistic takes the projection's place, if any, and decide on each.

    By releases that are not counted among the trials, so that the choice has seen none of them. A
    further statistic has to promise clearly more than the projection: what is the largest of
    several in a pilot is so by chance too.

    Returns:
        The name of the further statistic, or "", and the decisions.
    """
    pilot = draw(rules.pilots, sequence(seed, "pilot"), lambda units: None)
    laws = {name: PilotLaw(*pilot.samples(name)) for name in pilot.statistics}
    decisions = decide_by_law({name: laws[name] for name in STATISTICS if name in laws}, rules)
    alpha, best = rules.alpha_of("projection"), ""
    least = _CLEARLY * decisions["projection"].expected + _MORE
    for name in [name for name in laws if name not in STATISTICS]:
        found = best_decision(laws[name], rules.trials, delta=rules.delta, alpha=alpha)
        if found.expected > least:
            best, decisions["projection"], least = name, found, found.expected
    return best, decisions


def score(
    series: TrialSeries, decisions: Mapping[Statistic, Decision], rules: Rules, reads: str = ""
) -> dict[Statistic, StatisticResult]:
    """Bound epsilon by each statistic, under the decisions made before the trials.

    ``reads`` names the statistic that takes the projection's place, if any.
    """
    results = {}
    for name, decision in decisions.items():
        samples = series.samples(reads if reads and name == "projection" else name)
        bound = decision.bound(*samples, delta=rules.delta, alpha=rules.alpha_of(name))
        point = epsilon_point(*samples, delta=rules.delta, confidence=rules.confidence)
        results[name] = StatisticResult(*samples, bound, point)
    return results


def _gaussian(
    mechanism: Mechanism, hypotheses: Hypotheses, projections: Samples, rules: Rules
) -> GaussianBound | None:
    still = any(np.ptp(sample) == 0 for sample in projections)
    too_few = rules.trials < GAUSSIAN_TRIALS
    if mechanism.noise != "gaussian" or too_few or len(hypotheses.alternatives) > 1 or still:
        return None
    return gaussian_bound(*projections, delta=rules.delta, alpha=rules.alpha)
