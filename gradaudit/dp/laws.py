"""Laws of the two statistics under both hypotheses, and the threshold they recommend.

With g0 and g1 the noiseless releases and noise N(0, σ²I):

- **projection** ⟨g̃ − g0, u⟩ with u = (g1 − g0)/‖g1 − g0‖, the likelihood ratio up to scale:
  N(0, σ²) against N(‖g1 − g0‖, σ²), whatever the number of elements;
- **distance** ‖g̃ − g0‖ (Li24, section 7): σ χ_d against σ χ_d(‖g1 − g0‖/σ), noncentral, whose
  means lie apart by about ‖g1 − g0‖²/(2σ√d) only.

Under Laplace noise of scale b the likelihood ratio is Σ(|g̃ − g0| − |g̃ − g1|)/b. Where no law is
known, a pilot's releases stand in for it: any threshold is valid that the trials had no part in.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc, chndtr, ndtr

from gradaudit.dp.bounds import epsilon_lower
from gradaudit.dp.theory import FloatArray

_SPREAD = 8.0
"""Candidate thresholds reach this many standard deviations beyond either mean."""
_CANDIDATES = 1025
_PILOT_CANDIDATES = 257
_CHUNK = 1 << 22
"""Noise values drawn at once."""

Samples = tuple[FloatArray, FloatArray]


class Law(Protocol):
    """What is known of a statistic before the trials."""

    def error_rates(self, threshold: ArrayLike) -> Samples:
        """False positive and false negative rate of the test t ≥ τ, elementwise."""
        ...

    def candidates(self) -> FloatArray:
        """Thresholds worth considering."""
        ...


@dataclass(frozen=True)
class ProjectionLaw:
    """N(0, σ²) against an even mixture of N(s, σ²) over ``shifts``, in units of the gradient.

    One shift ‖g1 − g0‖ is the game between two values; several, ⟨g_v − g0, u⟩ each, the paper's
    game against a value drawn at random (definition 7.2).
    """

    shifts: tuple[float, ...]
    sigma: float

    def error_rates(self, threshold: ArrayLike) -> Samples:
        """Φ(−τ/σ), and Φ((τ − s)/σ) averaged over the shifts."""
        tau = np.asarray(threshold, float)
        misses = [ndtr((tau - shift) / self.sigma) for shift in self.shifts]
        return ndtr(-tau / self.sigma), np.mean(misses, axis=0)

    def candidates(self) -> FloatArray:
        """An even grid over both hypotheses."""
        low, high = min(0.0, *self.shifts), max(0.0, *self.shifts)
        reach = _SPREAD * self.sigma
        return np.linspace(low - reach, high + reach, _CANDIDATES)

    def sample(self, trials: int, rng: np.random.Generator) -> Samples:
        """Statistics of ``trials`` releases under each hypothesis."""
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
        """Upper tail of χ²_d at (τ/σ)², and lower tail of its noncentral kin."""
        square = np.square(np.maximum(np.asarray(threshold, float), 0) / self.sigma)
        misses = [chndtr(square, self.elements, (s / self.sigma) ** 2) for s in self.shifts]
        # The noncentral tail cannot be computed for shifts above about 10⁵ σ: no recommendation.
        return chdtrc(self.elements, square), np.nan_to_num(np.mean(misses, axis=0), nan=1.0)

    def candidates(self) -> FloatArray:
        """An even grid over both hypotheses; a (noncentral) χ has a standard deviation below 1."""
        centre = self.sigma * np.sqrt(self.elements)
        far, reach = np.hypot(centre, max(self.shifts)), _SPREAD * self.sigma
        return np.linspace(max(centre - reach, 0), far + reach, _CANDIDATES)

    def sample(self, trials: int, rng: np.random.Generator) -> Samples:
        """Statistics of ``trials`` releases under each hypothesis: √((z + s/σ)² + χ²_{d−1}) σ."""
        along = rng.standard_normal((2, trials))
        along[1] += rng.choice(self.shifts, trials) / self.sigma
        across = rng.chisquare(self.elements - 1, (2, trials)) if self.elements > 1 else 0.0
        null, alternative = self.sigma * np.sqrt(along**2 + across)
        return null, alternative


@dataclass(frozen=True)
class LaplaceLaw:
    """Σ(|g̃ − g0| − |g̃ − g1|)/b under Laplace noise of scale b; ``shift`` is (g1 − g0)/b.

    With n the noise in units of b and a = |shift|, an element contributes
    |n| − |n − a| = clip(2n − a, −a, a), and minus that under the alternative. The tails of the sum
    have no closed form; a sample of it, given to ``PilotLaw``, recommends a threshold.
    """

    shift: FloatArray

    @property
    def epsilon(self) -> float:
        """‖g1 − g0‖₁/b, the exact ε of the pair at δ = 0."""
        return float(np.abs(self.shift).sum())

    def sample(self, trials: int, rng: np.random.Generator) -> Samples:
        """Statistics of ``trials`` releases under each hypothesis, in chunks of bounded memory."""
        reach = np.abs(self.shift[self.shift != 0])
        rows = max(1, _CHUNK // max(1, len(reach)))
        sums = [
            np.clip(2 * rng.laplace(size=(count, len(reach))) - reach, -reach, reach).sum(axis=1)
            for count in _split(2 * trials, rows)
        ]
        both = np.concatenate(sums)
        return both[:trials], -both[trials:]


@dataclass(frozen=True)
class PilotLaw:
    """What pilot releases tell of an unknown law: the larger of a frequency and a normal tail.

    The pilot's frequencies know nothing beyond its extremes, where the best thresholds lie, and a
    normal law fitted to it knows nothing of its shape. Each guards against the other's optimism.
    The recommendation may be poor; the bound at it is valid all the same, as long as the pilot's
    releases are not counted among the trials.
    """

    null: FloatArray
    alternative: FloatArray

    def error_rates(self, threshold: ArrayLike) -> Samples:
        """Pessimistic guesses of both rates."""
        tau = np.asarray(threshold, float)
        above = 1 - np.searchsorted(np.sort(self.null), tau) / len(self.null)
        below = np.searchsorted(np.sort(self.alternative), tau) / len(self.alternative)
        return (
            np.maximum(above, ndtr(-_standardised(tau, self.null))),
            np.maximum(below, ndtr(_standardised(tau, self.alternative))),
        )

    def candidates(self) -> FloatArray:
        """Quantiles of both samples, and an even grid that reaches beyond them."""
        both = np.stack([self.null, self.alternative])
        centre, reach = both.mean(axis=1), _SPREAD * both.std(axis=1)
        even = np.linspace(min(centre - reach), max(centre + reach), _PILOT_CANDIDATES)
        levels = np.linspace(0, 1, _PILOT_CANDIDATES)
        return np.union1d(even, np.quantile(both, levels, method="higher"))


@dataclass(frozen=True)
class Threshold:
    """A threshold fixed before the trials, and about the bound it will give if the law holds."""

    value: float
    expected: float


def best_threshold(
    law: Law, trials: int, *, delta: float, confidence: float = 0.95, comparisons: int = 1
) -> Threshold:
    """The candidate with the largest bound at the expected numbers of errors.

    Among equals the middle one, which an unexpected shift or spread hurts least. Still, the law
    that a mechanism claims can recommend a threshold beyond both means (2.74 σ for a shift of σ),
    where a mechanism with far less noise makes no more difference than one without any: to
    test an implementation rather than a claim, prefer a pilot of it.

    Args:
        law: what is known, or guessed from a pilot.
        trials: releases under each hypothesis that will be counted.
        delta: as in the bound to come.
        confidence: as in the bound to come.
        comparisons: as in the bound to come.
    """
    candidates = law.candidates()
    positives, negatives = law.error_rates(candidates)
    expected = epsilon_lower(
        trials * positives,
        trials * negatives,
        trials,
        delta=delta,
        alpha=(1 - confidence) / comparisons,
    )
    best = np.flatnonzero(expected >= expected.max() * (1 - 1e-9))
    middle = best[len(best) // 2]
    return Threshold(float(candidates[middle]), float(expected[middle]))


def _split(total: int, size: int) -> list[int]:
    whole, rest = divmod(total, size)
    return [size] * whole + [rest] * (rest > 0)


def _standardised(threshold: FloatArray, sample: FloatArray) -> FloatArray:
    spread = max(float(np.std(sample)), np.finfo(float).tiny)
    with np.errstate(over="ignore"):
        return (threshold - np.mean(sample)) / spread
