"""Intervals of means and of ratios of means by the bootstrap, where values are skewed.

Percentiles of redrawn means know nothing of the tail that a sample has not seen. The bootstrap-t
(P. Hall, "Theoretical comparison of bootstrap confidence intervals", 1988) asks how far the means
of redraws lie from the sample's in their own standard errors: where a redraw misses the tail its
mean and its error are both too small, and the interval grows on the side where the tail is. Here it
works on logarithms, so that intervals of positive numbers stay positive. Of means of 10 to 200
records with lognormal values (σ ≤ 1) and label sensitivities of trained models it covers 88 to 97 %
at a nominal 95, of lognormal values with σ = 2.5 only 76 to 81 %: no row is judged by it.
``benchmarks/studies/sensitivity.py`` plays it.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gradaudit.randomness import rng
from gradaudit.statistics import CONFIDENCE

Array = NDArray[np.float64]
REPLICATES = 2000
FEWEST = 4
"""Records below which redraws that repeat one record are too many."""
_SAME = 1e-10


@lru_cache(maxsize=1)
def bootstrap_counts(count: int, seed: int) -> Array:
    """How often each of ``count`` records is drawn with replacement, (replicates, count)."""
    times = rng(seed, "bootstrap").multinomial(count, np.full(count, 1 / count), REPLICATES)
    return times.astype(np.float64)


def ratio_interval(
    numerators: Array, denominators: Array, draws: Array
) -> tuple[float, float] | None:
    """Bootstrap-t interval, in logarithms, of a ratio of means; with ones below, of a mean.

    Args:
        numerators: (records,), not negative.
        denominators: (records,), not negative and not all zero.
        draws: (replicates, records) as ``bootstrap_counts`` gives them.

    Returns:
        The interval, of no width where all records agree; None of fewer than four records.
    """
    if len(numerators) < FEWEST:
        return None
    ratio = float(numerators.sum() / denominators.sum())
    residuals = numerators - ratio * denominators
    error = float(np.sqrt(np.square(residuals).sum()) / denominators.sum())
    if error <= _SAME * ratio or ratio == 0:
        return ratio, ratio
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
    return ratio * _exp(-high * reach), ratio * _exp(-low * reach)


def _exp(power: float) -> float:
    return math.exp(min(power, 700.0))
