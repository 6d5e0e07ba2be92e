"""Means of norms over records and probes, and how sure they are.

A record's norm is known exactly, or as the mean over probes (of squares, for the F norm). The same
probes serve every record, so the errors of records are dependent, and the intervals of estimates
look at whole probes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gradaudit.statistics import CONFIDENCE

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """One norm of one layer's Jacobians.

    Attributes:
        parts: (records, probes), whose mean over probes is a record's norm, or its square; one
            probe where the norm is exact. Of the records that have one.
        defined: which records these are, (all records,).
        squared: whether it is the square.
        columns: how many columns there are, where the probes are some of them; else None.
    """

    parts: Array
    defined: NDArray[np.bool_]
    squared: bool
    columns: int | None = None

    @property
    def exact(self) -> bool:
        """Whether nothing is estimated."""
        return bool(self.parts.shape[1] == 1)

    @property
    def values(self) -> Array:
        """Each record's norm, (records,)."""
        return self._rooted(self.parts.mean(axis=1))

    @property
    def mean(self) -> float:
        """The mean over records."""
        return float(self.values.mean())

    def interval(self) -> tuple[float, float]:
        """An interval for the exact mean over these records: how far off the probes may be.

        F norms: the mean over Gaussian probes of a sum of squares is a mixture of chi-squares,
        approximated by one chi-square of the same variance (Satterthwaite 1946). The degrees of
        freedom come from the spread over probes, which is uncertain itself, most of all where one
        direction dominates: they are lowered by one standard error of the sample variance, but
        not below one a probe, the least that a Jacobian of rank one has.

        Sums over columns: Student's interval, for a finite number of columns.
        """
        alone = self._each_probe()
        count, variance, mean = len(alone), float(alone.var(ddof=1)), self.mean
        tails = np.array([1 - CONFIDENCE, 1 + CONFIDENCE]) / 2
        if self.columns is not None:
            error = np.sqrt(variance / count * (1 - count / self.columns))
            low, high = mean + stats.t.ppf(tails, count - 1) * error
            return max(0.0, float(low)), float(high)
        if variance == 0:
            return mean, mean
        freedom = max(1.0, 2 * mean**2 / variance)
        freedom = max(1.0, freedom / (1 + np.sqrt((2 + 12 / freedom) / count)))
        low, high = mean * np.sqrt(count * freedom / stats.chi2.ppf(tails[::-1], count * freedom))
        return float(low), float(high)

    @property
    def by_probe(self) -> Array:
        """What each probe alone says of the mean over records, to first order, (probes,)."""
        alone = self._each_probe()
        return (alone + self.mean) / 2 if self.squared else alone

    def _rooted(self, means: Array) -> Array:
        found: Array = np.sqrt(means) if self.squared else means
        return found

    def _each_probe(self) -> Array:
        """The mean over records of what a probe finds, for squares over the norm, (probes,)."""
        values = self.values[:, None] if self.squared else np.ones((len(self.parts), 1))
        ratios = np.divide(self.parts, values, where=values > 0, out=np.zeros_like(self.parts))
        alone: Array = ratios.mean(axis=0)
        return alone


def joined(
    value: float, first: tuple[float, float], second: tuple[float, float]
) -> tuple[float, float]:
    """The interval of a positive value whose error has two independent sources.

    Each alone has one of these intervals; distances in logarithms add in squares (G. Zou and A.
    Donner, "Construction of confidence limits about effect measures", 2008).
    """
    if value <= 0:
        return first
    with np.errstate(divide="ignore"):
        ends = np.log(np.maximum([first, second], 0.0) / value)
    low, high = np.sqrt(np.square(ends).sum(axis=0))
    return float(value * np.exp(-low)), float(value * np.exp(high))
