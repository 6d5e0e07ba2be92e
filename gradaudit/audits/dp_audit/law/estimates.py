"""Li24's point estimate of epsilon, which is no bound.

The paper maximises ln((1 − δ − FPR)/FNR) and its mirror image over every threshold, on the releases
that then give the rates (section 7). Two things go wrong. The maximum is taken over thousands of
dependent tests, so that two equal hypotheses give about 1.1 instead of 0; and wherever a rate is
zero the formula is infinite, as it is at some threshold of almost every sample. Thresholds
without an error in the denominator are therefore left out, which caps the estimate at ln N.

The interval around it treats the threshold as if it had been fixed. Its upper end is below the
truth wherever that is beyond what N trials can show. Its lower end is wide, resting on very few
errors, and still exceeds the truth in 7 % of simulated audits of a Laplace mechanism of ε = 5 with
20,000 trials; choosing the threshold by that end instead makes it 8 to 16 %, on a mechanism of
ε = 0 too. The study ``dp`` of ``benchmarks/coverage`` plays the estimate and its interval.

Beside it stands a bound on μ, and on epsilon, for mechanisms declared to add Gaussian noise.

**Why that bound is valid.** If noise N(0, σ²I) is added to g0 or to g1, the projection onto g1 − g0
is N(m, σ²) against N(m + μσ, σ²) with one unknown σ. With n₀ and n₁ releases and the pooled
variance s², T = (t̄₁ − t̄₀)/(s√(1/n₀ + 1/n₁)) is exactly noncentral t with n₀ + n₁ − 2 degrees of
freedom and noncentrality ν = μ/√(1/n₀ + 1/n₁). P_ν(T ≥ T_observed) rises in ν, so the ν at which
it is α is a lower confidence limit at 1 − α (inverting the one-sided test), and ε(μ) rises in μ.
The projection is a function of the release, so its ε bounds the mechanism's from below, for any
direction chosen before the trials.

The extrapolation from μ to a far tail is only as good as the declared law: under Laplace noise it
overshoots. Nor does it hold where the hypotheses differ in variance (the pooled s² is then of
neither, and ε depends on both variances), for mixtures, or for the distance, which is not normal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from pydantic import JsonValue
from scipy.special import fdtr, nctdtrinc

from gradaudit.audits.dp_audit.law.bounds import Direction, epsilon_of_rates
from gradaudit.audits.dp_audit.law.theory import FloatArray, epsilon_gaussian
from gradaudit.core.statistics.intervals import clopper_pearson_lower, clopper_pearson_upper


@dataclass(frozen=True)
class PointEstimate:
    """A point estimate at the best threshold of the same releases; neither end is a bound.

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
    """Compute the largest estimate over all thresholds, each one of the statistics.

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
    rates = epsilon_of_rates(np.maximum(denominator, 1) / trials[0], other / trials[1], delta)
    return np.where(denominator > 0, rates, 0.0)


def _interval(
    errors: Sequence[int], trials: Sequence[int], delta: float, alpha: float
) -> tuple[float, float]:
    """Compute the formula at the interval ends of both error rates."""
    ends = []
    for limit in (clopper_pearson_upper, clopper_pearson_lower):
        denominator, other = (limit(*one, alpha / 2) for one in zip(errors, trials, strict=True))
        ends.append(float(epsilon_of_rates(denominator, other, delta)))
    return ends[0], ends[1]


@dataclass(frozen=True)
class GaussianBound:
    """Lower bounds that hold if the noise is Gaussian, and how far the releases agree.

    ``mu`` is the lower bound on μ, at least 0, epsilon ε(mu, δ), and the estimate (t̄₁ − t̄₀)/s no
    bound. P-values are of D'Agostino and Pearson's K² of the residuals of both hypotheses, and of
    the two-sided F test of equal variances.
    """

    mu: float
    epsilon: float
    mu_estimate: float
    normality_p: float
    equal_variance_p: float

    @property
    def agreement(self) -> dict[str, JsonValue]:
        """The estimate and both p-values, for a report."""
        names = ("mu_estimate", "normality_p", "equal_variance_p")
        return {name: getattr(self, name) for name in names}


def gaussian_bound(
    null: ArrayLike, alternative: ArrayLike, *, delta: float, alpha: float = 0.05
) -> GaussianBound:
    """Bounds on μ and ε from projections of the releases of one pair, declared Gaussian.

    Of projections (trials,) under each hypothesis, perhaps of different numbers; 0 < δ < 1, and α
    is the probability, at most, that the bounds exceed the truth.

    Raises:
        ValueError: fewer than 20 trials, or no variation.
    """
    from scipy.stats import normaltest  # a second that other audits need not wait

    groups = np.asarray(null, float), np.asarray(alternative, float)
    fewest = min(map(len, groups))
    if fewest < 20:
        raise ValueError(f"gaussian_bound needs at least 20 trials, not {fewest}")
    mu = float(mu_lower(*groups, alpha=alpha))
    residuals = np.concatenate([group - group.mean() for group in groups])
    variances = [float(group.var(ddof=1)) for group in groups]
    degrees = [len(group) - 1 for group in groups]
    lower_tail = float(fdtr(degrees[1], degrees[0], variances[1] / variances[0]))
    gap = groups[1].mean() - groups[0].mean()
    estimate = float(gap / np.sqrt(np.average(variances, weights=degrees)))
    p_values = float(normaltest(residuals).pvalue), 2 * min(lower_tail, 1 - lower_tail)
    return GaussianBound(mu, epsilon_gaussian(mu, delta), estimate, *p_values)


def mu_lower(null: ArrayLike, alternative: ArrayLike, *, alpha: float) -> FloatArray:
    """Compute the lower confidence limit of μ at 1 − α, at least 0.

    Of projections (..., trials) under each hypothesis, perhaps of different numbers, limits (...).

    Raises:
        ValueError: the projections do not vary.
    """
    groups = np.asarray(null, float), np.asarray(alternative, float)
    degrees = [group.shape[-1] - 1 for group in groups]
    squares = (d * x.var(axis=-1, ddof=1) for d, x in zip(degrees, groups, strict=True))
    pooled = sum(squares) / sum(degrees)
    if not np.all(pooled > 0):
        raise ValueError("mu_lower needs projections that vary from release to release")
    per_unit = sum(1 / group.shape[-1] for group in groups) ** -0.5
    gap = groups[1].mean(axis=-1) - groups[0].mean(axis=-1)
    limit = nctdtrinc(sum(degrees), 1 - alpha, gap / np.sqrt(pooled) * per_unit) / per_unit
    return np.asarray(np.maximum(limit, 0))
