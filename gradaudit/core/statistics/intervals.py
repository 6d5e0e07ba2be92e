"""Intervals of means, rates and quantiles, and of means and ratios of means by the bootstrap.

``benchmarks/coverage/studies`` plays their coverage: ``attack.py`` and ``sensitivity.py``.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betainccinv, betaincinv

from gradaudit.core.randomness import rng
from gradaudit.core.statistics import CONFIDENCE
from gradaudit.core.statistics.laws import student_quantile
from gradaudit.core.text import UNBOUNDED

FloatArray = NDArray[np.float64]
DRAWS = 5000
"""Number of random weights; with it the level of an end is accurate to 9 % of itself."""
_CLUSTERS = 10
"""Fewest clusters from which on their variance is trusted."""
_ALIKE = 3.0
"""Effective members of a cluster, on average, from which the variance between them is trusted."""
_UNSEEN = 0.05
"""Clusters of an extreme kind that the sample may have missed, as a share of those it holds."""
_OF_BOTH = 0.8
"""Share of the clusters that must hold members of either kind for the variance to be trusted."""
REPLICATES = 2000
FEWEST = 4
"""Fewest records for a bootstrap; with fewer, too many redraws repeat one record."""
_SAME = 1e-10


def gaffke(values: FloatArray, sizes: FloatArray) -> tuple[float, float]:
    """Compute Gaffke's interval of the mean of independent values, weighted by their sizes.

    One largest possible value is added, with the largest size; all get random weights that sum to
    one (Dirichlet's law), and the 97.5 % quantile of the weighted mean is the upper end. The lower
    end is the same with the smallest possible value. Of values 0 or 1 it is Clopper and Pearson's.

    Source: N. Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on the mean
    of a nonnegative variable" (2005); E. Learned-Miller and P. S. Thomas, "A new confidence
    interval for the mean of a bounded random variable" (2019), who conjecture that it holds for
    every law and every n; it is not proved.

    Args:
        values: (values,) in [0, 1], one or more.
        sizes: (values,) positive.
    """
    weights = _exponential(len(values)) * np.append(sizes, sizes.max())
    weights /= weights.sum(axis=1, keepdims=True)
    rest = weights[:, :-1] @ values
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(rest, tail), np.quantile(rest + weights[:, -1], 1 - tail)
    return float(max(low, 0.0)), float(min(high, 1.0))


@lru_cache(maxsize=4)
def _exponential(number: int) -> FloatArray:
    """Weights before they are scaled to sum to one, (draws, number + 1); the same every time."""
    return rng(0, "gaffke").standard_exponential((DRAWS, number + 1))


Interval = tuple[float, float]


def student(values: FloatArray) -> Interval:
    """Student's interval of the mean of independent values, (values,) of two or more."""
    return _around_mean(values, float(values.var(ddof=1)) / len(values), 0.0)


def skewed(values: FloatArray) -> Interval:
    """Interval of the mean of independent values of a skewed law, (values,) of two or more.

    Student's quantiles, after the cubic transformation that removes the skewness of Student's ratio
    (P. Hall, "On the removal of skewness by transformation", 1992, section 2).
    """
    count, spread = len(values), float(values.std(ddof=1))
    mean = float(values.mean())
    if spread <= _SAME * abs(mean):
        return mean, mean
    skewness = float(((values - mean) ** 3).mean()) / spread**3
    if abs(skewness) < _SAME:
        return student(values)
    quantile = student_quantile(count - 1)
    ends = np.array([quantile, -quantile]) / count**0.5 - skewness / (6 * count)
    low, high = mean - spread * 3 / skewness * (np.cbrt(1 + skewness * ends) - 1)
    return float(low), float(high)


def nadeau_bengio(values: ArrayLike, scored: int, fitted: int, *, least: float = 0.0) -> Interval:
    """Compute an interval of a mean over repeated splits, for new records.

    x̄ ± t_{R−1} s √(1/R + scored/fitted) for R repetitions that split the same records anew (Nadeau
    and Bengio 2003, "Inference for the generalization error", section 3).

    >>> low, high = nadeau_bengio([0.61, 0.66, 0.64, 0.59, 0.65], scored=30, fitted=70)
    >>> round(low, 3), round(high, 3)
    (0.566, 0.694)

    Args:
        values: (R,) of the repetitions.
        scored: records in each score set.
        fitted: records in each set that was fitted on.
        least: standard error, at least, for values that are alike at the edge of their range.
    """
    values = np.asarray(values, float)
    return _around_mean(values, resampled_variance(values, scored, fitted), least)


def resampled_variance(values: FloatArray, scored: int, fitted: int) -> float:
    """Variance over new records of a mean over repetitions that split the same ones anew.

    It is s²(1/R + scored/fitted) instead of s²/R: Nadeau and Bengio, "Inference for the
    generalization error" (2003). Arguments are those of ``nadeau_bengio``.
    """
    return float(values.var(ddof=1)) * (1 / len(values) + scored / fitted)


def _around_mean(values: FloatArray, variance: float, least: float) -> Interval:
    margin = student_quantile(len(values) - 1) * max(math.sqrt(variance), least)
    return float(values.mean()) - margin, float(values.mean()) + margin


def wilson(rate: float, count: float, quantile: float) -> Interval:
    """Wilson's interval of a rate (1927), as of ``count`` independent trials; it holds the rate.

    Args:
        rate: in [0, 1].
        count: above 0, whole or not.
        quantile: of the error's law, such as Student's.
    """
    square = quantile**2 / count
    centre = (rate + square / 2) / (1 + square)
    margin = math.sqrt(square * (rate * (1 - rate) + square / 4)) / (1 + square)
    return max(min(centre - margin, rate), 0.0), min(max(centre + margin, rate), 1.0)


def clopper_pearson_upper(hits: ArrayLike, trials: float, alpha: float) -> FloatArray:
    """The largest rate under which so few hits still have probability α, elementwise."""
    hits = np.asarray(hits, float)
    return np.where(hits >= trials, 1.0, betainccinv(hits + 1, trials - hits, alpha))


def clopper_pearson_lower(hits: ArrayLike, trials: float, alpha: float) -> FloatArray:
    """The smallest rate under which so many hits still have probability α, elementwise."""
    hits = np.asarray(hits, float)
    return np.where(hits <= 0, 0.0, betaincinv(hits, trials - hits + 1, alpha))


def clopper_pearson(hits: float, count: float) -> Interval:
    """Compute the exact two-sided interval of a rate, at 95 %.

    The rates p with P(Bin(n, p) ≥ k) ≥ α/2 and P(Bin(n, p) ≤ k) ≥ α/2: quantiles of Beta(k, n − k +
    1) and Beta(k + 1, n − k) (Clopper and Pearson 1934). Counts need not be whole.

    >>> low, high = clopper_pearson(93, 100)
    >>> round(low, 4), round(high, 4)
    (0.8611, 0.9714)

    Raises:
        ValueError: the hits are not between 0 and the count.
    """
    if not 0 <= hits <= count:
        raise ValueError("clopper_pearson needs 0 <= hits <= count")
    limits = clopper_pearson_lower, clopper_pearson_upper
    low, high = (float(limit(hits, count, (1 - CONFIDENCE) / 2)) for limit in limits)
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

    Gaffke's interval holds for any number of clusters and any dependence, and is wide. From ten
    clusters on that differ little (effective count at least three times their number, members of
    either kind in four of five) each end is the tighter of it and Wilson's: on the effective count
    p(1 − p) over the variance between clusters, with Student's quantile, and as if 1/20 as many
    clusters more were counted as a whole or not at all.

    Args:
        shares: (clusters,) of each cluster's members.
        sizes: (clusters,) how many members each has.
    """
    weights = sizes / sizes.sum()
    alike, number = np.ptp(shares) == 0, len(shares)
    rate = float(shares[0] if alike else weights @ shares)
    low, high = gaffke(shares, sizes)
    if number >= _CLUSTERS and not alike:
        variance = number / (number - 1) * float((weights**2) @ (shares - rate) ** 2)
        count = min(rate * (1 - rate) / variance, float(sizes.sum()))
        of_both = min(np.count_nonzero(shares), np.count_nonzero(shares < 1))
        if count >= _ALIKE * number and of_both >= _OF_BOTH * number:
            least, most = wilson(rate, count, student_quantile(number - 1))
            seen = 1 / (1 + _UNSEEN)
            low, high = max(low, least * seen), min(high, 1 - (1 - most) * seen)
    return rate, (min(low, rate), max(high, rate))


def quantile_interval(lows: FloatArray, highs: FloatArray, share: float, tail: float) -> Interval:
    """An interval of the quantile of positive numbers, each of which is known within two ends.

    Exact for any law: the number of n values at or below the q-quantile is binomial (n, q) (W.
    Thompson 1936; H. David and H. Nagaraja, "Order statistics", 2003, section 7.1).

    Args:
        lows: (values,) the least that each number can be; the number itself where it is exact.
        highs: (values,) the most.
        share: of the law that lies at or below the quantile, in (0, 1).
        tail: probability that the quantile lies below the interval, and that it lies above.

    Returns:
        The interval. Zero is its lower end where too few values bound the quantile from below, and
        ``UNBOUNDED`` its upper end where fewer than ``fewest_values`` bound it from above.
    """
    below, above = order_statistics(len(lows), share, tail)
    low = float(np.sort(lows)[below - 1]) if below else 0.0
    high = float(np.sort(highs)[above - 1]) if above <= len(highs) else UNBOUNDED
    return low, high


def order_statistics(count: int, share: float, tail: float) -> tuple[int, int]:
    """Ranks, from 1, of the values that bound a quantile from below and from above.

    The lower one is 0, and the upper one ``count`` + 1, where no value does.

    >>> order_statistics(12, 0.5, 0.025), order_statistics(12, 0.9, 0.025)
    ((3, 10), (8, 13))
    """
    at_most = bdtr(np.arange(count + 1.0), count, share)
    below = int(np.count_nonzero(at_most <= tail))
    above = int(np.count_nonzero(at_most < 1 - tail)) + 1
    return below, above


def fewest_values(share: float, tail: float) -> int:
    """Returns the number of values that are needed to bound a quantile from above.

    >>> fewest_values(0.5, 0.025), fewest_values(0.9, 0.025)
    (6, 36)
    """
    return math.ceil(math.log(tail) / math.log(share))


@lru_cache(maxsize=1)
def bootstrap_counts(count: int, seed: int) -> FloatArray:
    """Returns how often each of ``count`` records is redrawn, (replicates, count)."""
    times = rng(seed, "bootstrap").multinomial(count, np.full(count, 1 / count), REPLICATES)
    return times.astype(np.float64)


def ratio_interval(
    numerators: FloatArray, denominators: FloatArray, draws: FloatArray
) -> tuple[float, float] | None:
    """Bootstrap-t interval, in logarithms, of a ratio of means; with ones below, of a mean.

    P. Hall, "Theoretical comparison of bootstrap confidence intervals" (1988). It stays positive,
    and grows on the side of a tail that redraws miss.

    Args:
        numerators: (records,), not negative.
        denominators: (records,), not negative and not all zero.
        draws: (replicates, records) as ``bootstrap_counts`` gives them.

    Returns:
        The interval, of no width where all records agree; None of fewer than four records.
    """
    if len(numerators) < FEWEST:
        return None
    if not numerators.any():
        return 0.0, 0.0
    largest, largest_below = float(numerators.max()), float(denominators.max())
    numerators, denominators = numerators / largest, denominators / largest_below
    unit = largest / largest_below  # without units, as squares of the smallest numbers are zero
    ratio = float(numerators.sum() / denominators.sum())
    residuals = numerators - ratio * denominators
    error = float(np.sqrt(np.square(residuals).sum()) / denominators.sum())
    if error <= _SAME * ratio:
        return ratio * unit, ratio * unit
    moved, below = draws @ residuals, draws @ denominators
    with np.errstate(divide="ignore", invalid="ignore"):
        change = moved / below  # the redrawn ratio less the ratio
        products = np.stack([residuals**2, residuals * denominators, denominators**2], axis=1)
        squares, mixed, lengths = (draws @ products).T
        spread = squares - 2 * change * mixed + change**2 * lengths
        kept = spread > _SAME * squares
        errors = np.sqrt(spread[kept]) / below[kept] / (ratio + change[kept])
        studentised = np.log1p(change[kept] / ratio) / errors
    low, high = np.quantile(studentised, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    reach = error / ratio
    return ratio * unit * _exp(-high * reach), ratio * unit * _exp(-low * reach)


def _exp(power: float) -> float:
    return math.exp(min(power, 700.0))
