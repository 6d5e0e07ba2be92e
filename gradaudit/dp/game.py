"""The game: a bound chosen before the trials, releases under both hypotheses, bounds after.

For every release a fair coin picks the hypothesis, so that nothing which drifts or is carried on
from release to release goes with either. What is left of such dependence is tested
(``statistics.serial``); releases that depend on each other give no bound.

Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning" (2024),
definition 7.2.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradaudit.dp.board import Board, Ruler, known_ruler
from gradaudit.dp.bounds import LowerBound
from gradaudit.dp.decision import Decision, best_decision
from gradaudit.dp.gaussian import GaussianBound, gaussian_bound
from gradaudit.dp.guesses import guesses_ceiling
from gradaudit.dp.laws import Law, PilotLaw, Samples
from gradaudit.dp.mechanisms import AdditiveMechanism, Mechanism
from gradaudit.dp.pilots import pilot_releases, pilot_ruler
from gradaudit.dp.point import PointEstimate, epsilon_point
from gradaudit.dp.theory import FloatArray
from gradaudit.dp.trials import (
    Laws,
    LawTrials,
    Played,
    ReleaseTrials,
    Statistic,
    Trials,
    laws_of,
)
from gradaudit.errors import UsageError
from gradaudit.progress import Advance
from gradaudit.statistics.serial import depends

Mode = Literal["implementation", "exact"]

MIN_TRIALS = 100
GAUSSIAN_TRIALS = 1000
"""Fewer let a Laplace or logistic law pass for the declared Gaussian one (in 15 to 89 % of runs of
100 to 200)."""
HEADLINE_SHARE = 0.9
"""Of α, for the statistic that is asked for; the rest is the other's (Bonferroni, weighted)."""


@dataclass(frozen=True)
class Rules:
    """What is fixed before a game.

    Attributes:
        trials: releases under each hypothesis that count, in expectation.
        delta: δ of the bounds.
        mode: run the mechanism, or sample the law of its statistics.
        confidence: 1 − α of all comparisons together.
        comparisons: games whose bounds hold at once.
        memory: bytes that a chunk of releases may take.
        statistic: that is asked for.
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
        """Error probability of a game."""
        return (1 - self.confidence) / self.comparisons

    def alpha_of(self, statistic: Statistic) -> float:
        """Error probability of one statistic's bound."""
        share = HEADLINE_SHARE if statistic == self.statistic else 1 - HEADLINE_SHARE
        return share * self.alpha

    @property
    def ceiling(self) -> float:
        """The most that the game can show."""
        alpha = self.alpha_of(self.statistic)
        return guesses_ceiling(2 * self.trials, delta=self.delta, alpha=alpha)


@dataclass(frozen=True)
class Score:
    """What one statistic said.

    Attributes:
        null: its value in each trial under the null hypothesis.
        alternative: under the alternative.
        bound: the lower bound on epsilon.
        point: the paper's estimate, no bound.
    """

    null: FloatArray
    alternative: FloatArray
    bound: LowerBound
    point: PointEstimate


@dataclass(frozen=True)
class Outcome:
    """A game that was played.

    Attributes:
        scores: by statistic.
        gaussian: the bound that holds if the noise is Gaussian; None where that is not declared,
            the trials are too few, the alternative is a mixture, or the projection does not vary.
        pilots: releases under each hypothesis, in expectation, that were spent on thresholds and
            direction.
        decided_by: the known law, or a pilot.
        dependent: whether the releases depend on each other, so that nothing here is a bound.
    """

    scores: dict[Statistic, Score]
    gaussian: GaussianBound | None
    pilots: int
    decided_by: Literal["law", "pilot"]
    dependent: bool = False


def play(
    mechanism: Mechanism,
    board: Board,
    rules: Rules,
    seed: np.random.SeedSequence,
    advance: Advance = lambda units: None,
) -> Outcome:
    """Play the game.

    Method and thresholds come from the law where it is known and the releases are drawn here, and
    else from a pilot. Neither sees a trial.

    Args:
        mechanism: what releases.
        board: gradients under both hypotheses, which differ.
        rules: what is fixed before.
        seed: of everything that is drawn.
        advance: hears of every trial, of both hypotheses.

    Raises:
        UsageError: exact mode for a mechanism whose statistics have no closed law.
        AuditError: a mechanism from a file fails.
    """
    for_ruler, for_pilot, for_test, for_trials = seed.spawn(4)
    pilots = pilot_releases(rules.trials)
    if isinstance(mechanism, AdditiveMechanism):
        ruler, spent = known_ruler(mechanism, board), 0
    else:
        ruler, spent = pilot_ruler(mechanism, board, pilots, for_ruler, rules.memory), pilots
    laws = laws_of(mechanism, board, ruler)
    source = _source(mechanism, board, ruler, laws, rules)
    known = bool(laws) and (rules.mode == "exact" or not mechanism.foreign)
    if known:
        decisions = {name: decide(law, name, rules) for name, law in laws.items()}
    else:
        pilot = source.draw(pilots, for_pilot, lambda units: None)
        decisions = {
            name: decide(PilotLaw(*pilot.samples(name)), name, rules) for name in pilot.statistics
        }
        spent += pilots
    played = source.draw(rules.trials, for_trials, advance)
    return Outcome(
        scores={
            name: _score(played.samples(name), decision, name, rules)
            for name, decision in decisions.items()
        },
        gaussian=_gaussian(mechanism, board, played.samples("projection"), rules),
        pilots=spent,
        decided_by="law" if known else "pilot",
        dependent=not known and mechanism.foreign and _dependent(played, for_test),
    )


def decide(law: Law, statistic: Statistic, rules: Rules) -> Decision:
    """The method and the thresholds for a statistic, before its trials."""
    return best_decision(law, rules.trials, delta=rules.delta, alpha=rules.alpha_of(statistic))


def _source(mechanism: Mechanism, board: Board, ruler: Ruler, laws: Laws, rules: Rules) -> Trials:
    if rules.mode == "implementation":
        return ReleaseTrials(mechanism, board, ruler, rules.memory)
    if not laws:
        raise UsageError(
            f"--mode exact: {mechanism.description} is not known to add Gaussian noise; "
            "use --mode implementation"
        )
    return LawTrials(laws)


def _score(samples: Samples, decision: Decision, name: Statistic, rules: Rules) -> Score:
    bound = decision.bound(*samples, delta=rules.delta, alpha=rules.alpha_of(name))
    point = epsilon_point(*samples, delta=rules.delta, confidence=rules.confidence)
    return Score(*samples, bound, point)


def _gaussian(
    mechanism: Mechanism, board: Board, projections: Samples, rules: Rules
) -> GaussianBound | None:
    still = any(np.ptp(sample) == 0 for sample in projections)
    too_few = rules.trials < GAUSSIAN_TRIALS
    if mechanism.noise != "gaussian" or too_few or len(board.alternatives) > 1 or still:
        return None
    return gaussian_bound(*projections, delta=rules.delta, alpha=rules.alpha)


def _dependent(played: Played, seed: np.random.SeedSequence) -> bool:
    series = list(played.statistics.values())
    return depends(series, played.coins, np.random.default_rng(seed))
