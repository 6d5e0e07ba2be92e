"""Exact confidence intervals of quantiles from order statistics, for any law and any sample size.

Of n independent values, the number that lie at or below the q-quantile is binomial (n, q), whatever
the law. So the a-th smallest value lies above the quantile with probability P(B ≤ a − 1) at most,
and the b-th smallest below it with P(B ≥ b) at most (W. Thompson 1936; H. David and H. Nagaraja,
"Order statistics", 2003, section 7.1). Few values bound a quantile on one side only.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from gradaudit.statistics.intervals import Interval
from gradaudit.text import UNBOUNDED

Array = NDArray[np.float64]


def quantile_interval(lows: Array, highs: Array, share: float, tail: float) -> Interval:
    """An interval of the quantile of positive numbers, each of which is known within two ends.

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
    """How many values it takes to bound a quantile from above.

    >>> fewest_values(0.5, 0.025), fewest_values(0.9, 0.025)
    (6, 36)
    """
    return math.ceil(math.log(tail) / math.log(share))
