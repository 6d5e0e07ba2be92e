"""Correlation over layers or cases."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gradaudit.statistics import CONFIDENCE

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Correlation:
    """Pearson's correlation of ``n`` points, with its t, two-sided p and Fisher's interval.

    ``spearman`` is that of the ranks, for relations that rise but are no line.
    """

    r: float
    t: float
    p: float
    interval: tuple[float, float]
    n: int
    spearman: float


FEWEST_POINTS = 5


def pearson(x: FloatArray, y: FloatArray, confidence: float = CONFIDENCE) -> Correlation | None:
    """Correlation of points (n,), or None of fewer than five, or of ones that do not vary."""
    if len(x) < FEWEST_POINTS or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    found = stats.pearsonr(x, y)
    r = float(np.clip(found.statistic, -1 + 1e-15, 1 - 1e-15))
    free = len(x) - 2
    margin = float(stats.norm.ppf((1 + confidence) / 2)) / np.sqrt(len(x) - 3)
    low, high = np.tanh(np.arctanh(r) + np.array([-margin, margin]))
    t = r * float(np.sqrt(free / (1 - r**2)))
    ranks = float(stats.spearmanr(x, y).statistic)
    return Correlation(r, t, float(found.pvalue), (float(low), float(high)), len(x), ranks)
