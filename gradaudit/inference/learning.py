"""How much more would be learned with more records, by the learning curve of those there are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gradaudit.inference.usable import Learned, Usable

FloatArray = NDArray[np.float64]

_GRID = np.linspace(-9, 9, 2001)
_SURE = 1 - 1e-12
_APART = 1e-3
"""Distance of two classes below which a point of the curve has learned nothing."""


def mean_curve(found: Sequence[Usable]) -> list[Learned]:
    """The mean of the repetitions' learning curves; empty where there is none."""
    curves = [each.curve for each in found]
    if not all(curves):
        return []
    return [Learned(*np.mean(points, axis=0)) for points in zip(*curves, strict=True)]


def by_a_line(shares: Sequence[float], values: Sequence[float]) -> float:
    """What is added with records without end, by a line in one over the share of the records.

    It says too little where the curve has just begun to rise: .02 of the .08 nats that are missed.
    """
    slope = np.polyfit(1 / np.asarray(shares), np.asarray(values), 1)[0]
    return max(0.0, -float(slope))


def limit_of_ranking(curve: Sequence[Learned]) -> float | None:
    """The AUROC with records without end, by the law of linear discriminants.

    With n records and p features, classes that are Δ apart come out δ apart, with
    1/δ² = 1/Δ² + c·p/n and AUROC = Φ(δ/√2) (R. A. Fisher's discriminant; S. Raudys and A. K. Jain,
    "Small sample size effects in statistical pattern recognition", 1991): a line of 1/δ² in one
    over the share, whose points weigh by δ⁶ as their variance does. None where the points do not
    show a limit: nothing is learned, or so far twice the records give twice δ². (Of .102 nats,
    of which .07 to .08 are found, it makes .12 in the median of 30 samples; where .02 are found,
    a third of the samples show no limit.)
    """
    apart = np.array([_distance(point.auroc) for point in curve])
    shares = np.array([point.share for point in curve])
    told = apart > _APART
    if told.sum() < 2 or not told[-1]:
        return None
    slope, level = np.polyfit(1 / shares[told], apart[told] ** -2, 1, w=apart[told] ** 3)
    if level <= 0:
        return None
    return float(stats.norm.cdf(max(level**-0.5 if slope > 0 else 0.0, apart[-1]) / np.sqrt(2)))


def ranked_share(auroc: float) -> float:
    """Share of a fair coin's entropy that two normal laws with this AUROC tell, in [0, 1].

    The log-likelihood ratio of two normal laws that are d apart is N(d²/2, d²) under its own, and
    AUROC = Φ(d/√2); the share is 1 − E log2(1 + exp(−LLR)).
    """
    apart = _distance(auroc)
    lost = np.logaddexp(0, -(apart**2 / 2 + apart * _GRID)) / np.log(2)
    density = stats.norm.pdf(_GRID)
    return float(max(0.0, 1 - (lost * density).sum() / density.sum()))


def _distance(auroc: float) -> float:
    """Of two normal laws of unit variance, in deviations."""
    return float(np.sqrt(2) * stats.norm.ppf(min(max(auroc, 0.5), _SURE)))
