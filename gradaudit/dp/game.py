"""The game: a threshold fixed before the trials, releases under both hypotheses, bounds after.

Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning" (2024),
definition 7.2.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradaudit.dp.board import Board, Ruler, known_ruler
from gradaudit.dp.bounds import LowerBound, lower_bound
from gradaudit.dp.gaussian import GaussianBound, gaussian_bound
from gradaudit.dp.laws import (
    DistanceLaw,
    PilotLaw,
    ProjectionLaw,
    Samples,
    Threshold,
    best_threshold,
)
from gradaudit.dp.mechanisms import AdditiveMechanism, Mechanism
from gradaudit.dp.pilots import pilot_releases, pilot_ruler
from gradaudit.dp.point import PointEstimate, epsilon_point
from gradaudit.dp.theory import FloatArray
from gradaudit.dp.trials import Laws, LawTrials, ReleaseTrials, Statistic, Trials, laws_of
from gradaudit.errors import UsageError
from gradaudit.progress import Advance

Mode = Literal["implementation", "exact"]

MIN_TRIALS = 100


@dataclass(frozen=True)
class Rules:
    """What is fixed before a game.

    Attributes:
        trials: releases under each hypothesis that count.
        delta: δ of the bounds.
        mode: run the mechanism, or sample the law of its statistics.
        confidence: 1 − α of all comparisons together.
        comparisons: games among which the largest bound will be reported.
        memory: bytes that a chunk of releases may take.
    """

    trials: int
    delta: float
    mode: Mode = "implementation"
    confidence: float = 0.95
    comparisons: int = 1
    memory: int = 1 << 28

    def __post_init__(self) -> None:
        if self.trials < MIN_TRIALS:
            raise UsageError(f"--trials {self.trials}: too few; give at least {MIN_TRIALS}")


@dataclass(frozen=True)
class Score:
    """What one statistic said.

    Attributes:
        null: its value in each trial under the null hypothesis.
        alternative: under the alternative.
        threshold: fixed before the trials.
        bound: the lower bound on epsilon.
        point: the paper's estimate, no bound.
    """

    null: FloatArray
    alternative: FloatArray
    threshold: Threshold
    bound: LowerBound
    point: PointEstimate


@dataclass(frozen=True)
class Outcome:
    """A game that was played.

    Attributes:
        scores: by statistic.
        gaussian: the bound that holds if the noise is Gaussian; None where that is not declared,
            the alternative is a mixture, or the projection does not vary.
        pilots: releases under each hypothesis that were spent on threshold and direction.
        threshold_from: the known law, or a pilot.
    """

    scores: dict[Statistic, Score]
    gaussian: GaussianBound | None
    pilots: int
    threshold_from: Literal["law", "pilot"]


def play(
    mechanism: Mechanism,
    board: Board,
    rules: Rules,
    seed: np.random.SeedSequence,
    advance: Advance = lambda units: None,
) -> Outcome:
    """Play the game.

    The threshold comes from the law where it is known and the releases are drawn here, and else
    from a pilot. Neither sees a trial.

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
    for_ruler, for_pilot, for_trials = seed.spawn(3)
    pilots = pilot_releases(rules.trials)
    if isinstance(mechanism, AdditiveMechanism):
        ruler, spent = known_ruler(mechanism, board), 0
    else:
        ruler, spent = pilot_ruler(mechanism, board, pilots, for_ruler, rules.memory), pilots
    laws = laws_of(mechanism, board, ruler)
    source = _source(mechanism, board, ruler, laws, rules)
    known = bool(laws) and (rules.mode == "exact" or not _foreign(mechanism))
    if known:
        thresholds = {name: _threshold(law, rules) for name, law in laws.items()}
    else:
        pilot = source.draw(pilots, for_pilot, lambda units: None)
        thresholds = {name: _threshold(PilotLaw(*pilot[name]), rules) for name in pilot}
        spent += pilots
    samples = source.draw(rules.trials, for_trials, advance)
    return Outcome(
        scores={name: _score(*samples[name], thresholds[name], rules) for name in samples},
        gaussian=_gaussian(mechanism, board, samples["projection"], rules),
        pilots=spent,
        threshold_from="law" if known else "pilot",
    )


def _source(mechanism: Mechanism, board: Board, ruler: Ruler, laws: Laws, rules: Rules) -> Trials:
    if rules.mode == "implementation":
        return ReleaseTrials(mechanism, board, ruler, rules.memory)
    if not laws:
        raise UsageError(
            f"--mode exact: {mechanism.description} is not known to add Gaussian noise; "
            "use --mode implementation"
        )
    return LawTrials(laws)


def _foreign(mechanism: Mechanism) -> bool:
    return not isinstance(mechanism, AdditiveMechanism) or mechanism.foreign


def _threshold(law: ProjectionLaw | DistanceLaw | PilotLaw, rules: Rules) -> Threshold:
    return best_threshold(
        law,
        rules.trials,
        delta=rules.delta,
        confidence=rules.confidence,
        comparisons=rules.comparisons,
    )


def _score(null: FloatArray, other: FloatArray, threshold: Threshold, rules: Rules) -> Score:
    bound = lower_bound(
        null,
        other,
        threshold.value,
        delta=rules.delta,
        confidence=rules.confidence,
        comparisons=rules.comparisons,
    )
    point = epsilon_point(null, other, delta=rules.delta, confidence=rules.confidence)
    return Score(null, other, threshold, bound, point)


def _gaussian(
    mechanism: Mechanism, board: Board, projections: Samples, rules: Rules
) -> GaussianBound | None:
    still = any(np.ptp(sample) == 0 for sample in projections)
    if mechanism.noise != "gaussian" or len(board.alternatives) > 1 or still:
        return None
    return gaussian_bound(
        *projections,
        delta=rules.delta,
        confidence=rules.confidence,
        comparisons=rules.comparisons,
    )
