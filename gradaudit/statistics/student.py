"""Student's interval of a mean, and the one of repetitions on the same records."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gradaudit.statistics import CONFIDENCE

FloatArray = NDArray[np.float64]


def student(values: FloatArray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Student's interval of the mean of independent values, (values,) of two or more."""
    return _around_mean(values, 1 / len(values), confidence, 0.0)


def resampled(
    values: FloatArray,
    scored: int,
    fitted: int,
    confidence: float = CONFIDENCE,
    *,
    least: float = 0.0,
) -> tuple[float, float]:
    """Student's interval for new records, where repetitions only split the same ones anew.

    The variance is s²(1/R + scored/fitted) instead of s²/R: Nadeau and Bengio, "Inference for the
    generalization error" (2003).

    Args:
        values: (R,) of the repetitions.
        scored: records in each score set.
        fitted: records in each set that was fitted on.
        confidence: of the interval.
        least: standard error, at least, for values that are alike at the edge of their range.
    """
    return _around_mean(values, 1 / len(values) + scored / fitted, confidence, least)


def _around_mean(
    values: FloatArray, factor: float, confidence: float, least: float
) -> tuple[float, float]:
    quantile = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1))
    margin = quantile * max(float(np.sqrt(values.var(ddof=1) * factor)), least)
    return float(values.mean()) - margin, float(values.mean()) + margin
