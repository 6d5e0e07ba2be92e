"""A bound on μ, and on epsilon, for mechanisms declared to add Gaussian noise.

**Why the bound is valid.** If noise N(0, σ²I) is added to g0 or to g1, the projection onto g1 − g0
is N(m, σ²) against N(m + μσ, σ²) with one unknown σ. With n releases each and the pooled variance
s², T = (t̄₁ − t̄₀)/(s√(2/n)) is exactly noncentral t with 2n − 2 degrees of freedom and
noncentrality ν = μ√(n/2). P_ν(T ≥ T_observed) rises in ν, so the ν at which it is α is a lower
confidence limit at 1 − α (inverting the one-sided test), and ε(μ) rises in μ. The projection is a
function of the release, so its ε bounds the mechanism's from below, for any direction chosen
before the trials.

The extrapolation from μ to a far tail is only as good as the declared law: under Laplace noise it
overshoots. Nor does it hold where the hypotheses differ in variance (the pooled s² is then of
neither, and ε depends on both variances), for mixtures, or for the distance, which is not normal.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtr, gammainccinv, gammaincinv, ndtr
from scipy.stats import normaltest

from gradaudit.dp.theory import FloatArray, epsilon_gaussian

_NODES = 128
_TAIL = 1e-17
_FAR = 10.0
_BISECTIONS = 60


@dataclass(frozen=True)
class GaussianBound:
    """Lower bounds that hold if the noise is Gaussian, and how far the releases agree.

    Attributes:
        mu: lower bound on μ, at least 0.
        epsilon: ε(mu, δ).
        mu_estimate: (t̄₁ − t̄₀)/s, no bound.
        trials: releases under each hypothesis.
        confidence: probability, at least, that each bound lies below the truth.
        normality_p: p-value of D'Agostino and Pearson's K² of the residuals of both hypotheses.
        equal_variance_p: two-sided p-value of the F test of equal variances.
    """

    mu: float
    epsilon: float
    mu_estimate: float
    trials: int
    confidence: float
    normality_p: float
    equal_variance_p: float


def gaussian_bound(
    null: ArrayLike,
    alternative: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    comparisons: int = 1,
) -> GaussianBound:
    """Bounds on μ and ε from projections of the releases of one pair, declared Gaussian.

    Args:
        null: projections under the null, (trials,).
        alternative: projections under the alternative, (trials,).
        delta: 0 < δ < 1.
        confidence: 1 − α, for all comparisons together.
        comparisons: number of pairs whose releases are looked at.

    Raises:
        ValueError: fewer than 20 trials, unequal numbers of them, or no variation.
    """
    groups = np.stack([np.asarray(null, float), np.asarray(alternative, float)])
    trials = groups.shape[1]
    if trials < 20:
        raise ValueError(f"gaussian_bound needs at least 20 trials, not {trials}")
    mu = float(mu_lower(*groups, alpha=(1 - confidence) / comparisons))
    residuals = groups - groups.mean(axis=1, keepdims=True)
    variances = groups.var(axis=1, ddof=1)
    lower_tail = float(fdtr(trials - 1, trials - 1, variances[1] / variances[0]))
    return GaussianBound(
        mu=mu,
        epsilon=epsilon_gaussian(mu, delta),
        mu_estimate=float(np.diff(groups.mean(axis=1))[0] / np.sqrt(variances.mean())),
        trials=trials,
        confidence=confidence,
        normality_p=float(normaltest(residuals.ravel()).pvalue),
        equal_variance_p=2 * min(lower_tail, 1 - lower_tail),
    )


def mu_lower(null: ArrayLike, alternative: ArrayLike, *, alpha: float) -> FloatArray:
    """The lower confidence limit of μ at 1 − α, and 0 where that is negative.

    Args:
        null: projections under the null, (..., trials).
        alternative: projections under the alternative, (..., trials).
        alpha: error probability.

    Returns:
        The limits, (...).

    Raises:
        ValueError: the projections do not vary.
    """
    null, alternative = np.asarray(null, float), np.asarray(alternative, float)
    trials = null.shape[-1]
    pooled = (null.var(axis=-1, ddof=1) + alternative.var(axis=-1, ddof=1)) / 2
    if not np.all(pooled > 0):
        raise ValueError("mu_lower needs projections that vary from release to release")
    per_unit = np.sqrt(trials / 2)
    observed = (alternative.mean(axis=-1) - null.mean(axis=-1)) / np.sqrt(pooled) * per_unit
    limit = noncentrality_lower(observed, 2 * trials - 2, alpha) / per_unit
    return np.asarray(np.maximum(limit, 0))


def noncentrality_lower(observed: ArrayLike, degrees: int, alpha: float) -> FloatArray:
    """The ν at which a noncentral t exceeds ``observed`` with probability α, elementwise.

    T = (Z + ν)/S with S² = χ²/degrees, so P(T ≥ t) = E[Φ(ν − tS)], here by quadrature over S.
    Accurate for thousands of degrees and noncentralities of hundreds, where series give out.
    """
    observed = np.asarray(observed, float)
    scale, weight = _scale_quadrature(degrees)
    thresholds = observed[..., np.newaxis] * scale
    low, high = thresholds.min(axis=-1) - _FAR, thresholds.max(axis=-1) + _FAR
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        exceeds = ndtr(middle[..., np.newaxis] - thresholds) @ weight > alpha
        low, high = np.where(exceeds, low, middle), np.where(exceeds, middle, high)
    return np.asarray(low)


def _scale_quadrature(degrees: int) -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre nodes and weights, summing to one, for the law of S = √(χ²/degrees)."""
    half = degrees / 2
    ends = np.sqrt([gammaincinv(half, _TAIL) / half, gammainccinv(half, _TAIL) / half])
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    scale = ends.mean() + (ends[1] - ends[0]) / 2 * nodes
    log_density = (degrees - 1) * np.log(scale) - half * scale**2
    mass = weights * np.exp(log_density - log_density.max())
    return scale, mass / mass.sum()
