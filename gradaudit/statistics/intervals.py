"""Intervals of means, and of rates from counts that may be effective ones."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from gradaudit.statistics import CONFIDENCE
from gradaudit.statistics.laws import student_quantile

FloatArray = NDArray[np.float64]
Interval = tuple[float, float]
_CLUSTERS = 5
"""That have a member of the rarer kind, below which their variance is not to be trusted."""


def student(values: FloatArray) -> Interval:
    """Student's interval of the mean of independent values, (values,) of two or more."""
    return _around_mean(values, 1 / len(values), 0.0)


def resampled(values: FloatArray, scored: int, fitted: int, *, least: float = 0.0) -> Interval:
    """Student's interval for new records, where repetitions only split the same ones anew.

    The variance is s²(1/R + scored/fitted) instead of s²/R: Nadeau and Bengio, "Inference for the
    generalization error" (2003).

    Args:
        values: (R,) of the repetitions.
        scored: records in each score set.
        fitted: records in each set that was fitted on.
        least: standard error, at least, for values that are alike at the edge of their range.
    """
    return _around_mean(values, 1 / len(values) + scored / fitted, least)


def _around_mean(values: FloatArray, factor: float, least: float) -> Interval:
    quantile = student_quantile(len(values) - 1)
    margin = quantile * max(float(np.sqrt(values.var(ddof=1) * factor)), least)
    return float(values.mean()) - margin, float(values.mean()) + margin


def wilson(rate: float, count: float, quantile: float) -> Interval:
    """Wilson's interval of a rate (1927), as of ``count`` independent trials.

    Args:
        rate: in [0, 1].
        count: above 0, whole or not.
        quantile: of the error's law, such as Student's.
    """
    square = quantile**2 / count
    centre = (rate + square / 2) / (1 + square)
    margin = math.sqrt(square * (rate * (1 - rate) + square / 4)) / (1 + square)
    return max(centre - margin, 0.0), min(centre + margin, 1.0)


def clopper_pearson(hits: float, count: float) -> Interval:
    """Exact two-sided interval of a share of ``count`` trials; counts need not be whole."""
    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0
    return low, high


def difference(one: float, of_one: Interval, other: float, of_other: Interval) -> Interval:
    """Interval of the difference of two independent estimates from their own intervals.

    Newcombe's square-and-add: "Interval estimation for the difference between independent
    proportions" (1998), method 10.
    """
    gap = one - other
    low = math.hypot(one - of_one[0], of_other[1] - other)
    high = math.hypot(of_one[1] - one, other - of_other[0])
    return gap - low, gap + high


def clustered(shares: FloatArray, sizes: FloatArray) -> tuple[float, Interval]:
    """A share over clusters whose members are dependent, and its interval.

    Wilson's on the effective count p(1 − p) over the variance between clusters, with Student's
    quantile for as many clusters. Where fewer than five clusters have a member that is the rarer
    of both, their variance tells nothing and each cluster counts once. One cluster says nothing.
    In 1,500 simulations each of 20, 40 and 80 clusters of 4, 8 and 32, independent, beta-binomial
    (correlated by 1/7 and 2/5) or all alike, at shares of .005 to .3, it holds the truth in 91 to
    99.9 %; by the variance alone in as little as 80 %.

    Args:
        shares: (clusters,) of each cluster's members.
        sizes: (clusters,) how many members each has.
    """
    weights = sizes / sizes.sum()
    alike, number = np.ptp(shares) == 0, len(shares)
    rate = float(shares[0] if alike else weights @ shares)
    if number < 2:
        return rate, (0.0, 1.0)
    quantile = student_quantile(number - 1)
    if alike:
        return rate, wilson(rate, number, quantile)
    variance = number / (number - 1) * float((weights**2) @ (shares - rate) ** 2)
    count = min(rate * (1 - rate) / variance, float(sizes.sum()))
    if min(np.count_nonzero(shares), np.count_nonzero(shares < 1)) < _CLUSTERS:
        count = min(count, number)
    return rate, wilson(rate, count, quantile)
