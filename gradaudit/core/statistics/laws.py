"""Entropies, tails and quantiles of laws, without ``scipy.stats``, whose import takes a second."""

from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, betainc, ndtr, ndtri, stdtr, stdtrit

from gradaudit.core.statistics import CONFIDENCE


def entropy(prior: ArrayLike) -> float:
    """The entropy H(a) in nats of a variable whose values have these probabilities, (values,)."""
    probabilities = np.asarray(prior, dtype=np.float64)
    held = probabilities[probabilities > 0] / probabilities.sum()
    return float(-(held * np.log(held)).sum())


def student_quantile(freedom: float) -> float:
    """Compute Student's two-sided quantile at ``CONFIDENCE``."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def student_p(t: float, freedom: float) -> float:
    """The two-sided p-value of Student's t."""
    return 2 * float(stdtr(freedom, -abs(t)))


def permutation_p_value(observed: float, permuted: ArrayLike) -> float:
    """Compute the p-value of a permutation test.

    (1 + b)/(1 + N), with b of N permuted statistics at least as large as the observed one (Phipson
    and Smyth 2010, "Permutation p-values should never be zero").

    >>> permutation_p_value(2.0, [0.5, 1.0, 2.0, 3.0])
    0.6
    """
    reached = np.asarray(permuted) >= observed
    return (1 + int(reached.sum())) / (1 + reached.size)


def replicated_p_value(p_value: float, permutations: int) -> tuple[float, float]:
    """Span the p-values of new samples at ``CONFIDENCE``, by the observed one's normal deviate.

    D. Boos and L. Stefanski, "P-value precision and reproducibility" (2011).

    >>> low, high = replicated_p_value(0.05, 9999)
    >>> round(low, 5), round(high, 2)
    (0.00016, 0.62)
    """
    least = 1 / (2 * (permutations + 1))
    deviate = float(ndtri(min(max(p_value, least), 1 - least)))
    margin = float(ndtri((1 + CONFIDENCE) / 2))
    return float(ndtr(deviate - margin)), float(ndtr(deviate + margin))


def binomial_at_least(hits: int, trials: int, share: float) -> float:
    """Returns the probability of so many hits or more."""
    return float(betainc(hits, trials - hits + 1, share)) if hits > 0 else 1.0


def binomial_quantile(probability: float, trials: int, share: float) -> int:
    """The least count that so much of the binomial law lies at or below."""
    return bisect_left(
        range(trials), probability, key=lambda count: float(bdtr(count, trials, share))
    )
