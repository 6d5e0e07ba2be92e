"""Correlation over layers or cases."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from gradaudit.core.statistics import CONFIDENCE
from gradaudit.core.statistics.laws import student_p, student_quantile

FloatArray = NDArray[np.float64]
FEWEST_POINTS = 5
_LARGEST = 1 - 1e-15


def rank(values: FloatArray) -> FloatArray:
    """Ranks (n,) from 1; ties share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place])


@dataclass(frozen=True)
class Correlation:
    """Pearson's correlation of ``n`` points, with its t, two-sided p and interval.

    ``spearman`` is that of the ranks, for relations that rise but are no line.
    """

    r: float
    t: float
    p: float
    interval: tuple[float, float]
    n: int
    spearman: float


def pearson(
    x: FloatArray,
    y: FloatArray,
    clusters: Sequence[int] | None = None,
) -> Correlation | None:
    """Correlation of points (n,), or None of fewer than five, or of ones that do not vary.

    Points are independent, with Fisher's interval; or they are in clusters, such as the layers of
    one model and attribute. Then the standard error of atanh r is that of a jackknife over the
    clusters, with Student's law of one degree of freedom less than there are clusters, for the
    interval, t and p. (Over 300 simulations each of 3 to 16 clusters of 5 to 10 points it covers
    91 to 98 % at 95, Fisher's 50 to 96 %; of 2 clusters it is nearly all of [−1, 1].)

    Args:
        x: (n,).
        y: (n,).
        clusters: (n,) number of each point's cluster, two of them or more; None for none.
    """
    if len(x) < FEWEST_POINTS or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    r = _r(x, y)
    of_ranks = float(np.corrcoef(rank(x), rank(y))[0, 1])
    if clusters is not None:
        return Correlation(r, *_clustered(x, y, np.asarray(clusters)), len(x), of_ranks)
    margin = float(ndtri((1 + CONFIDENCE) / 2)) / np.sqrt(len(x) - 3)
    t = r * float(np.sqrt((len(x) - 2) / (1 - r**2)))
    p = student_p(t, len(x) - 2)
    return Correlation(r, t, p, _around(r, margin), len(x), of_ranks)


def _clustered(
    x: FloatArray, y: FloatArray, clusters: NDArray[np.int64]
) -> tuple[float, float, tuple[float, float]]:
    """t, p and interval by a jackknife; (0, 1, (−1, 1)) where all rests on one cluster."""
    rest = [clusters != one for one in np.unique(clusters)]
    if any(np.ptp(x[kept]) == 0 or np.ptp(y[kept]) == 0 for kept in rest):
        return 0.0, 1.0, (-1.0, 1.0)
    left = np.arctanh([_r(x[kept], y[kept]) for kept in rest])
    free = len(rest) - 1
    error = float(np.sqrt(free * left.var()))
    r = _r(x, y)
    t = float(np.arctanh(r)) / max(error, 1e-300)
    return t, student_p(t, free), _around(r, student_quantile(free) * error)


def _r(x: FloatArray, y: FloatArray) -> float:
    return float(np.clip(np.corrcoef(x, y)[0, 1], -_LARGEST, _LARGEST))


def _around(r: float, margin: float) -> tuple[float, float]:
    middle = np.arctanh(r)
    return float(np.tanh(middle - margin)), float(np.tanh(middle + margin))
