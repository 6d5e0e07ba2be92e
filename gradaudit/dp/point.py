"""Li24's point estimate of epsilon, which is no bound.

The paper maximises ln((1 − δ − FPR)/FNR) and its mirror image over every threshold, on the releases
that then give the rates (section 7). Two things go wrong. The maximum is taken over thousands of
dependent tests, so that two equal hypotheses give about 1.1 instead of 0; and wherever a rate is
zero the formula is infinite, as it is at some threshold of almost every sample. Thresholds
without an error in the denominator are therefore left out, which caps the estimate at ln N.

The interval around it treats the threshold as if it had been fixed. Its upper end is below the
truth wherever that is beyond what N trials can show. Its lower end is wide, resting on very few
errors, and still exceeds the truth in 7 % of audits of a Laplace mechanism of ε = 5 with 20,000
trials; choosing the threshold by that end instead makes it 8 to 16 %, on a mechanism of ε = 0 too
(``benchmarks/dp_coverage.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gradaudit.dp import bounds
from gradaudit.dp.bounds import Direction
from gradaudit.dp.theory import FloatArray


@dataclass(frozen=True)
class PointEstimate:
    """The estimate at the best threshold of the same releases; neither end is a bound.

    The value is at most ln N of the more numerous trials. The interval is the formula at the ends
    of both rates' Clopper–Pearson intervals (each at 1 − α, the confidence), as if the threshold
    had been fixed. ``direction`` is the error rate in the denominator, and the errors are those at
    the threshold, under the null and the alternative.
    """

    value: float
    interval: tuple[float, float]
    threshold: float
    direction: Direction
    false_positives: int
    false_negatives: int
    confidence: float


def epsilon_point(
    null: ArrayLike, alternative: ArrayLike, *, delta: float, confidence: float = 0.95
) -> PointEstimate:
    """The largest estimate over all thresholds t ≥ τ, τ one of the statistics themselves.

    Of statistics (trials,) under each hypothesis, perhaps of different numbers, at 0 ≤ δ < 1; the
    confidence is that of the interval at the chosen threshold.

    Raises:
        ValueError: no trials under a hypothesis.
    """
    null, alternative = np.sort(np.asarray(null, float)), np.sort(np.asarray(alternative, float))
    trials = len(null), len(alternative)
    if not min(trials):
        raise ValueError("epsilon_point needs trials under both hypotheses")
    thresholds = np.union1d(null, alternative)
    positives = trials[0] - np.searchsorted(null, thresholds)
    negatives = np.searchsorted(alternative, thresholds)
    both = (positives, negatives, trials), (negatives, positives, trials[::-1])
    estimates = np.stack([_estimates(*of_direction, delta) for of_direction in both])
    mirrored, best = np.unravel_index(np.argmax(estimates), estimates.shape)
    counts = int(positives[best]), int(negatives[best])
    turn = -1 if mirrored else 1
    return PointEstimate(
        value=float(estimates[mirrored, best]),
        interval=_interval(counts[::turn], trials[::turn], delta, 1 - confidence),
        threshold=float(thresholds[best]),
        direction="false negatives" if mirrored else "false positives",
        false_positives=counts[0],
        false_negatives=counts[1],
        confidence=confidence,
    )


def _estimates(
    denominator: np.ndarray, other: np.ndarray, trials: Sequence[int], delta: float
) -> FloatArray:
    rates = bounds.epsilon_of_rates(
        np.maximum(denominator, 1) / trials[0], other / trials[1], delta
    )
    return np.where(denominator > 0, rates, 0.0)


def _interval(
    errors: Sequence[int], trials: Sequence[int], delta: float, alpha: float
) -> tuple[float, float]:
    """The formula at the ends of the intervals of the denominator's rate and of the other."""
    ends = []
    for limit in (bounds.clopper_pearson_upper, bounds.clopper_pearson_lower):
        denominator, other = (limit(*one, alpha / 2) for one in zip(errors, trials, strict=True))
        ends.append(float(bounds.epsilon_of_rates(denominator, other, delta)))
    return ends[0], ends[1]
