"""What is decided before the trials: by which bound they will be judged, at which thresholds.

A law, or a pilot in its stead, tells the numbers of errors to be expected at every threshold, and
so about the bound that each method would give. The better one is taken. That costs nothing:
neither the choice nor the thresholds have seen a trial.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradaudit.dp.bounds import (
    LowerBound,
    epsilon_lower,
    epsilon_of_guesses,
    lower_bound,
    tails_bound,
)
from gradaudit.dp.laws import Law
from gradaudit.dp.theory import FloatArray

_EQUAL = 1e-9
"""Relative difference below which two expected bounds are the same."""
_COARSE = 64
"""Steps of the first grid of thresholds, of which all pairs are tried."""
_FINER = 4
"""Each further grid, around the best pair so far, is so many times finer."""

Pairs = NDArray[np.intp]
"""Indices (2, pairs) of a lower threshold and of a higher one."""


@dataclass(frozen=True)
class Threshold:
    """One threshold fixed before the trials, and about the bound it will give if the law holds."""

    value: float
    expected: float

    def bound(
        self, null: ArrayLike, alternative: ArrayLike, *, delta: float, alpha: float
    ) -> LowerBound:
        """The bound of one test's errors from the statistics (trials,) under each hypothesis."""
        return lower_bound(null, alternative, self.value, delta=delta, alpha=alpha)


@dataclass(frozen=True)
class Tails:
    """Two thresholds fixed before the trials, and about the bound they will give."""

    low: float
    high: float
    expected: float

    def bound(
        self, null: ArrayLike, alternative: ArrayLike, *, delta: float, alpha: float
    ) -> LowerBound:
        """The bound of guesses in both tails from statistics whose hypotheses fair coins picked."""
        return tails_bound(null, alternative, (self.low, self.high), delta=delta, alpha=alpha)


Decision = Threshold | Tails


def best_decision(law: Law, trials: int, *, delta: float, alpha: float = 0.05) -> Decision:
    """The method and the thresholds of which most is expected.

    Args:
        law: what is known, or guessed from a pilot.
        trials: releases under each hypothesis that will be counted (of guesses, in expectation).
        delta: as in the bound to come.
        alpha: as in the bound to come.
    """
    threshold = best_threshold(law, trials, delta=delta, alpha=alpha)
    tails = best_tails(law, trials, delta=delta, alpha=alpha)
    return tails if tails.expected > threshold.expected else threshold


def best_threshold(law: Law, trials: int, *, delta: float, alpha: float = 0.05) -> Threshold:
    """The candidate with the largest bound at the expected numbers of errors.

    Among equals the middle one, which an unexpected shift or spread hurts least. Still, the law
    that a mechanism claims can recommend a threshold beyond both means (2.74 σ for a shift of σ),
    where a mechanism with far less noise makes no more difference than one without any: to
    test an implementation rather than a claim, prefer a pilot of it.

    Args:
        law: what is known, or guessed from a pilot.
        trials: releases under each hypothesis that will be counted.
        delta: as in the bound to come.
        alpha: as in the bound to come.
    """
    candidates = law.candidates()
    positives, negatives = law.error_rates(candidates)
    expected = epsilon_lower(
        trials * positives, trials * negatives, trials, delta=delta, alpha=alpha
    )
    best = np.flatnonzero(expected >= expected.max() * (1 - _EQUAL))
    middle = best[len(best) // 2]
    return Threshold(float(candidates[middle]), float(expected[middle]))


def best_tails(law: Law, trials: int, *, delta: float, alpha: float = 0.05) -> Tails:
    """The pair of candidates with the largest bound at the expected numbers of guesses.

    All pairs of a coarse grid are tried, then those near the best one in finer grids.

    Args:
        law: what is known, or guessed from a pilot.
        trials: releases under each hypothesis that will be counted, in expectation.
        delta: as in the bound to come.
        alpha: as in the bound to come.
    """
    candidates = np.sort(law.candidates())
    positives, negatives = law.error_rates(candidates)

    def expected(pairs: Pairs) -> FloatArray:
        low, high = pairs
        right = trials * ((1 - negatives[high]) + (1 - positives[low]))
        wrong = trials * (positives[high] + negatives[low])
        return epsilon_of_guesses(right, wrong, 2 * trials, delta=delta, alpha=alpha)

    last = len(candidates) - 1
    step = max(1, last // _COARSE)
    every = np.append(np.arange(0, last, step), last)
    chosen, value = _best_pair(expected, every, every)
    while step > 1:
        near = np.arange(-step, step + 1, max(1, step // _FINER))
        around = (np.clip(index + near, 0, last) for index in chosen)
        chosen, value = _best_pair(expected, *around)
        step //= _FINER
    low, high = candidates[chosen]
    return Tails(float(low), float(high), value)


def _best_pair(
    expected: Callable[[Pairs], FloatArray], lower: Pairs, higher: Pairs
) -> tuple[Pairs, float]:
    """The best pair and its value; of equal ones that nearest to their mean (as the middle one)."""
    grid = np.stack([side.ravel() for side in np.meshgrid(lower, higher, indexing="ij")])
    pairs = grid[:, grid[0] <= grid[1]]
    found = expected(pairs)
    best = pairs[:, found >= found.max() * (1 - _EQUAL)]
    nearest = np.abs(best - best.mean(axis=1, keepdims=True)).sum(axis=0).argmin()
    return best[:, nearest], float(found.max())
