"""Entropies, tails and quantiles of laws without ``scipy.stats``, and tests of normality.

Whether values are of a normal law, by their skewness and kurtosis.

D'Agostino and Pearson, "Tests for departure from normality" (1973); the two parts are those of
D'Agostino, "Transformation to normality of the null distribution of g1" (1970), and of Anscombe and
Glynn, "Distribution of the kurtosis statistic b2 for normal samples" (1983).
"""

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrc, betainc, ndtr, ndtri, stdtr, stdtrit

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


def binomial_exceeded(count: int, trials: int, share: float) -> float:
    """The probability of more hits than these."""
    return float(bdtrc(count, trials, share))


def binomial_limit(probability: float, trials: int, share: float) -> int:
    """The least count that is exceeded with no higher probability."""
    return bisect_left(
        range(trials), -probability, key=lambda count: -binomial_exceeded(count, trials, share)
    )


FloatArray = NDArray[np.float64]


def normality(values: FloatArray) -> float:
    """The p-value of values (n,) that are not all alike, 20 or more, being normal.

    The squares of two numbers that are about standard normal have χ² with two degrees of freedom.
    """
    centred = values - values.mean()
    variance = float(np.mean(centred**2))
    skewness = float(np.mean(centred**3)) / variance**1.5
    kurtosis = float(np.mean(centred**4)) / variance**2
    n = len(values)
    return math.exp(-(_of_skewness(skewness, n) ** 2 + _of_kurtosis(kurtosis, n) ** 2) / 2)


def _of_skewness(skewness: float, n: int) -> float:
    """Transforms the skewness to a number that is about standard normal."""
    y = skewness * math.sqrt((n + 1) * (n + 3) / (6 * (n - 2)))
    tails = 3.0 * (n**2 + 27 * n - 70) * (n + 1) * (n + 3)
    tails /= (n - 2) * (n + 5) * (n + 7) * (n + 9)
    square = math.sqrt(2 * (tails - 1)) - 1
    return math.asinh(y / math.sqrt(2 / (square - 1))) / math.sqrt(math.log(square) / 2)


def _of_kurtosis(kurtosis: float, n: int) -> float:
    """Transforms the kurtosis to a number that is about standard normal."""
    mean = 3 * (n - 1) / (n + 1)
    variance = 24 * n * (n - 2) * (n - 3) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    x = (kurtosis - mean) / math.sqrt(variance)
    skew = 6 * (n**2 - 5 * n + 2) / ((n + 7) * (n + 9))
    skew *= math.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    freedom = 6 + 8 / skew * (2 / skew + math.sqrt(1 + 4 / skew**2))
    shrunk = (1 - 2 / freedom) / (1 + x * math.sqrt(2 / (freedom - 4)))
    return (1 - 2 / (9 * freedom) - math.cbrt(shrunk)) / math.sqrt(2 / (9 * freedom))
