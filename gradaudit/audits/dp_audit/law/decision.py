"""Chooses, before the trials, the kind of bound and its thresholds.

A law, or a pilot in its stead, gives the numbers of errors to be expected at every threshold, and
so about the bound that each method would give. The better one is taken. That costs nothing:
neither the choice nor the thresholds have seen a trial.

With g0 and g1 the noiseless releases and noise N(0, σ²I), the laws of the statistics are:

- **projection** ⟨g̃ − g0, u⟩ with u = (g1 − g0)/‖g1 − g0‖, the likelihood ratio up to scale:
  N(0, σ²) against N(‖g1 − g0‖, σ²), whatever the number of elements;
- **distance** ‖g̃ − g0‖ (Li24, section 7): σ χ_d against σ χ_d(‖g1 − g0‖/σ), noncentral, whose
  means lie apart by about ‖g1 − g0‖²/(2σ√d) only.

Under Laplace noise of scale b the likelihood ratio is Σ(|g̃ − g0| − |g̃ − g1|)/b, whose tails have
no closed form. Where no law is known, a pilot's releases stand in for it: any threshold is valid
that the trials had no part in.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc, chndtr, ndtr

from gradaudit.audits.dp_audit.law.bounds import (
    LowerBound,
    Method,
    epsilon_lower,
    epsilon_of_errors,
    epsilon_of_guesses,
    epsilon_two_tailed,
)
from gradaudit.audits.dp_audit.law.theory import FloatArray

_SPREAD = 8.0
"""Candidate thresholds reach this many standard deviations beyond either mean."""
_CANDIDATES = 1025
_PILOT_CANDIDATES = 257
_ENOUGH, _UNLIKELY = 100, 0.01
"""Pilots that can speak against a normal law, and the p-value at which they do."""
_DEVIATIONS = 2.6
"""Standard errors by which the logarithm of the ratio of two deviations lies from 0 if they
differ."""

_EQUAL = 1e-9
"""Relative difference below which two expected bounds are the same."""
_COARSE = 64
"""Steps of the first grid of thresholds, of which all pairs are tried."""
_FINER = 4
"""Factor by which each further grid, around the best pair so far, is finer."""

Pairs = NDArray[np.intp]
"""Indices (2, pairs) of a lower threshold and of a higher one."""
Samples = tuple[FloatArray, FloatArray]
Statistic = Literal["projection", "distance"]


@dataclass(frozen=True)
class ProjectionLaw:
    """N(0, σ²) against an even mixture of N(s, σ²) over ``shifts``, in units of the gradient.

    One shift ‖g1 − g0‖ is the game between two values; several, ⟨g_v − g0, u⟩ each, the paper's
    game against a value drawn at random (definition 7.2).
    """

    shifts: tuple[float, ...]
    sigma: float

    def error_rates(self, threshold: ArrayLike) -> Samples:
        """Compute both error rates: Φ(−τ/σ), and Φ((τ − s)/σ) averaged over the shifts."""
        tau = np.asarray(threshold, float)
        misses = [ndtr((tau - shift) / self.sigma) for shift in self.shifts]
        return ndtr(-tau / self.sigma), np.mean(misses, axis=0)

    def candidates(self) -> FloatArray:
        """Make an even grid of thresholds over both hypotheses."""
        low, high = min(0.0, *self.shifts), max(0.0, *self.shifts)
        reach = _SPREAD * self.sigma
        return np.linspace(low - reach, high + reach, _CANDIDATES)

    def sample(self, trials: int, rng: np.random.Generator) -> Samples:
        """Draw the statistics of ``trials`` releases under each hypothesis."""
        null, alternative = rng.standard_normal((2, trials)) * self.sigma
        return null, alternative + rng.choice(self.shifts, trials)


@dataclass(frozen=True)
class DistanceLaw:
    """σ χ_d against an even mixture of noncentral σ χ_d(s/σ) over ``shifts``, s = ‖g_v − g0‖.

    ``elements`` is d, the elements that carry noise.
    """

    shifts: tuple[float, ...]
    sigma: float
    elements: int

    def error_rates(self, threshold: ArrayLike) -> Samples:
        """Compute both error rates at (τ/σ)², from χ²_d and its noncentral form."""
        square = np.square(np.maximum(np.asarray(threshold, float), 0) / self.sigma)
        misses = [chndtr(square, self.elements, (s / self.sigma) ** 2) for s in self.shifts]
        # The noncentral tail cannot be computed for shifts above about 10⁵ σ: no recommendation.
        return chdtrc(self.elements, square), np.nan_to_num(np.mean(misses, axis=0), nan=1.0)

    def candidates(self) -> FloatArray:
        """Make an even grid of thresholds; a (noncentral) χ has a standard deviation below 1."""
        centre = self.sigma * np.sqrt(self.elements)
        far, reach = np.hypot(centre, max(self.shifts)), _SPREAD * self.sigma
        return np.linspace(max(centre - reach, 0), far + reach, _CANDIDATES)

    def sample(self, trials: int, rng: np.random.Generator) -> Samples:
        """Draw statistics of ``trials`` releases: √((z + s/σ)² + χ²_{d−1}) σ."""
        along = rng.standard_normal((2, trials))
        along[1] += rng.choice(self.shifts, trials) / self.sigma
        across = rng.chisquare(self.elements - 1, (2, trials)) if self.elements > 1 else 0.0
        null, alternative = self.sigma * np.sqrt(along**2 + across)
        return null, alternative


Laws = dict[Statistic, ProjectionLaw | DistanceLaw]


@dataclass(frozen=True)
class PilotLaw:
    """An unknown law, estimated from pilot releases.

    Where nothing speaks against normal laws (D'Agostino and Pearson's K² of both samples), their
    tails, of one deviation where nothing speaks against that (the ratio of both): they tell more
    than the pilot's frequencies do. At a shift of .5 deviations and 1,250 pilots the bound's mean
    is 1.04 instead of .94, and 1.04 too where the law is known. Else the larger of a frequency and
    a normal tail: frequencies know nothing beyond the pilot's extremes, where the best thresholds
    lie, and a normal law nothing of the shape, and each guards against the other's optimism.

    The recommendation may be poor; the bound at it is valid all the same, as long as the pilot's
    releases are not counted among the trials.
    """

    null: FloatArray
    alternative: FloatArray

    def error_rates(self, threshold: ArrayLike) -> Samples:
        """Estimate both error rates from the pilot releases."""
        tau = np.asarray(threshold, float)
        normal = self._looks_normal
        spreads = self._spreads(alike=normal)
        positive = ndtr(-_standardised(tau, self.null, spreads[0]))
        negative = ndtr(_standardised(tau, self.alternative, spreads[1]))
        if normal:
            return positive, negative
        above = 1 - np.searchsorted(np.sort(self.null), tau) / len(self.null)
        below = np.searchsorted(np.sort(self.alternative), tau) / len(self.alternative)
        return np.maximum(above, positive), np.maximum(below, negative)

    @property
    def _looks_normal(self) -> bool:
        samples = (self.null, self.alternative)
        if min(map(len, samples)) < _ENOUGH or not all(np.ptp(sample) for sample in samples):
            return False
        from scipy.stats import normaltest  # a second that other audits need not wait

        return all(normaltest(sample).pvalue > _UNLIKELY for sample in samples)

    def _spreads(self, *, alike: bool) -> tuple[float, float]:
        """Compute both samples' standard deviations, or a common one if ``alike``."""
        first, second = float(self.null.std()), float(self.alternative.std())
        if not alike:
            return first, second
        error = math.sqrt(0.5 / len(self.null) + 0.5 / len(self.alternative))
        if abs(math.log(first / second)) > _DEVIATIONS * error:
            return first, second
        pooled = math.hypot(first, second) / math.sqrt(2)
        return pooled, pooled

    def candidates(self) -> FloatArray:
        """Make thresholds: quantiles of both samples, and an even grid that reaches beyond them."""
        samples = (self.null, self.alternative)
        ends = [sample.mean() + _SPREAD * sample.std() * np.array([-1, 1]) for sample in samples]
        even = np.linspace(np.min(ends), np.max(ends), _PILOT_CANDIDATES)
        levels = np.linspace(0, 1, 2 * _PILOT_CANDIDATES)
        return np.union1d(even, np.quantile(np.concatenate(samples), levels, method="higher"))


def _standardised(threshold: FloatArray, sample: FloatArray, spread: float) -> FloatArray:
    with np.errstate(over="ignore"):
        return (threshold - np.mean(sample)) / max(spread, np.finfo(float).tiny)


Law = ProjectionLaw | DistanceLaw | PilotLaw
"""What is known of a statistic before the trials."""


@dataclass(frozen=True)
class Decision:
    """A decision made before the trials, and the bound expected from it if the law holds.

    ``low`` and ``high`` are the thresholds, or one twice; guesses in two tails ask that fair coins
    picked the hypotheses. ``expected`` is the bound.
    """

    method: Method
    low: float
    high: float
    expected: float

    def bound(
        self, null: ArrayLike, alternative: ArrayLike, *, delta: float, alpha: float
    ) -> LowerBound:
        """Compute the bound from the statistics (trials,) under each hypothesis."""
        if self.method == "clopper-pearson":
            return epsilon_lower(null, alternative, self.low, delta=delta, alpha=alpha)
        ends = self.low, self.high
        return epsilon_two_tailed(null, alternative, ends, delta=delta, alpha=alpha)


def best_decision(law: Law, trials: int, *, delta: float, alpha: float = 0.05) -> Decision:
    """Choose the method and thresholds with the largest expected bound.

    ``trials`` releases under each hypothesis will be counted (in expectation, of guesses), for a
    bound with this δ and α.
    """
    decide = (best_threshold, best_tails)
    decisions = [method(law, trials, delta=delta, alpha=alpha) for method in decide]
    return max(decisions, key=lambda decision: decision.expected)


def best_threshold(law: Law, trials: int, *, delta: float, alpha: float = 0.05) -> Decision:
    """Choose the threshold whose bound is the largest at the expected numbers of errors.

    Among equals the middle one, which an unexpected shift or spread hurts least. Still, the law
    that a mechanism claims can recommend a threshold beyond both means (2.74 σ for a shift of σ),
    where a mechanism with far less noise makes no more difference than one without any: to
    test an implementation rather than a claim, prefer a pilot of it. Arguments are those of
    ``best_decision``.
    """
    candidates = law.candidates()
    positives, negatives = law.error_rates(candidates)
    expected = epsilon_of_errors(
        trials * positives, trials * negatives, trials, delta=delta, alpha=alpha
    )
    best = np.flatnonzero(expected >= expected.max() * (1 - _EQUAL))
    middle = best[len(best) // 2]
    threshold = float(candidates[middle])
    return Decision("clopper-pearson", threshold, threshold, float(expected[middle]))


def pilot_threshold(
    null: ArrayLike, alternative: ArrayLike, trials: int, *, delta: float, alpha: float = 0.05
) -> float:
    """Choose a threshold for ``epsilon_lower`` from a pilot split.

    The one at which ε = max(ln((1 − δ − q)/p), ln((1 − δ − p)/q)) is largest for the errors that
    the pilot lets expect (Kairouz, Oh and Viswanath 2015). Its releases are not counted again.

    >>> rng = np.random.default_rng(0)
    >>> null, alternative = rng.normal(size=1000), rng.normal(2, size=1000)
    >>> threshold = pilot_threshold(null[:200], alternative[:200], 800, delta=1e-5)
    >>> bound = epsilon_lower(null[200:], alternative[200:], threshold, delta=1e-5)
    >>> 1 < bound.value < 7.4
    True

    Args:
        null: (pilots,) statistics of pilot releases under the null hypothesis.
        alternative: (pilots,) those under the alternative.
        trials: releases under each hypothesis that will be counted.
        delta: δ of the bound.
        alpha: error probability of the bound.
    """
    law = PilotLaw(np.asarray(null, float), np.asarray(alternative, float))
    return best_threshold(law, trials, delta=delta, alpha=alpha).low


def best_tails(law: Law, trials: int, *, delta: float, alpha: float = 0.05) -> Decision:
    """Choose the pair of thresholds with the largest bound at the expected numbers of guesses.

    All pairs of a coarse grid are tried, then those near the best one in finer grids. Arguments are
    those of ``best_decision``.
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
    return Decision("two-tailed guesses", float(low), float(high), value)


def _best_pair(
    expected: Callable[[Pairs], FloatArray], lower: Pairs, higher: Pairs
) -> tuple[Pairs, float]:
    """Find the best pair and its value; of equal ones, the pair nearest to their mean."""
    grid = np.stack([side.ravel() for side in np.meshgrid(lower, higher, indexing="ij")])
    pairs = grid[:, grid[0] <= grid[1]]
    values = expected(pairs)
    best = pairs[:, values >= values.max() * (1 - _EQUAL)]
    nearest = np.abs(best - best.mean(axis=1, keepdims=True)).sum(axis=0).argmin()
    return best[:, nearest], float(values.max())
