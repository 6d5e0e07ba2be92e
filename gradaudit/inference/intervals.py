"""Intervals over repetitions, and correlation over layers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FloatArray = NDArray[np.float64]

CONFIDENCE = 0.95


def student(values: FloatArray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Student's interval of the mean of independent values, (values,) of two or more."""
    return _around_mean(values, 1 / len(values), confidence)


def resampled(
    values: FloatArray, scored: int, fitted: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Student's interval for new records, where repetitions only split the same ones anew.

    The variance is s²(1/R + scored/fitted) instead of s²/R: Nadeau and Bengio, "Inference for the
    generalization error" (2003).

    Args:
        values: (R,) of the repetitions.
        scored: records in each score set.
        fitted: records in each set that was fitted on.
        confidence: of the interval.
    """
    return _around_mean(values, 1 / len(values) + scored / fitted, confidence)


def _around_mean(values: FloatArray, factor: float, confidence: float) -> tuple[float, float]:
    quantile = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1))
    margin = quantile * float(np.sqrt(values.var(ddof=1) * factor))
    return float(values.mean()) - margin, float(values.mean()) + margin


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
