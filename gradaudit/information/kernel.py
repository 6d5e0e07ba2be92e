"""Information in points seen through Gaussian noise, by bounds from pairwise distances.

For X uniform over N records and T the layer's activations, the information that T plus Gaussian
noise of variance σ² has of X lies between −1/N Σ_i log2(1/N Σ_j exp(−‖t_i − t_j‖²/(2ασ²))) with
α = 4 and with α = 1 (A. Kolchinsky and B. Tracey, "Estimating mixture entropy with pairwise
distances", 2017; Mo et al. 2021, "Layer-wise characterization of latent information leakage in
federated learning", eq. 12, where the exponential is missing).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gradaudit.statistics import CONFIDENCE

Array = NDArray[np.float64]

UPPER, LOWER = 1.0, 4.0
"""The α of the upper and of the lower bound."""


@dataclass(frozen=True)
class Bound:
    """A bound in bits, and where it would lie for other records.

    Attributes:
        bits: of all records.
        without: of all records but one, (records,).
    """

    bits: float
    without: Array

    @property
    def interval(self) -> tuple[float, float]:
        """Student's interval with the jackknife's standard error, within 0 and log2 N.

        It covers what as many other records of the same kind give on average. (A bootstrap would
        draw records twice, and a record drawn twice tells less.)
        """
        count = len(self.without)
        error = np.sqrt((count - 1) * self.without.var())
        reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * error)
        low, high = max(0.0, self.bits - reach), min(np.log2(count), self.bits + reach)
        return min(float(low), self.bits), max(float(high), self.bits)


class Pairs:
    """Squared Euclidean distances between all pairs of points, from blocks of their elements.

    Args:
        records: how many points there are.
    """

    def __init__(self, records: int) -> None:
        self._gram = np.zeros((records, records))

    def add(self, block: Array) -> None:
        """Take in more elements of all points, (records, some elements).

        Centred first: what all points share would round away what they differ in.
        """
        with np.errstate(invalid="ignore"):  # what is not finite is found in the distances
            centred = block - block.mean(axis=0)
            self._gram += centred @ centred.T

    def squared_distances(self) -> Array:
        """(records, records), exact zeros on the diagonal."""
        norms = self._gram.diagonal()
        distances: Array = norms[:, None] + norms - 2 * self._gram
        np.maximum(distances, 0.0, out=distances)
        np.fill_diagonal(distances, 0.0)
        return distances


def information(distances: Array, sigma2: float, alpha: float, memory: int = 1 << 28) -> Bound:
    """One of the bounds.

    Args:
        distances: squared, (records, records), with zeros on the diagonal; two records or more.
        sigma2: variance of the noise in every element, in squared units of the activations.
        alpha: ``UPPER`` or ``LOWER``.
        memory: bytes that a block of rows may take.
    """
    count = len(distances)
    total, without = 0.0, np.zeros(count)
    for rows, kernels in _kernels(distances, 2 * alpha * sigma2, memory):
        sums = kernels.sum(axis=1)
        total += float(np.log2(sums / count).sum())
        others = sums[:, None] - kernels
        others[np.arange(len(rows)), rows] = 1.0  # a record left out has no term of its own
        without += np.log2(others).sum(axis=0)
    return Bound(_clipped(-total / count, count), np.log2(count - 1) - without / (count - 1))


def _kernels(
    distances: Array, width: float, memory: int
) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """exp(−distances/width) for some rows at a time.

    A row's largest term is its own, exp(0) = 1: sums neither vanish nor overflow, and taking
    another record's term away from a sum leaves at least 1.
    """
    count = len(distances)
    step = max(1, memory // (8 * 3 * count))
    for start in range(0, count, step):
        rows = np.arange(start, min(start + step, count), dtype=np.int64)
        yield rows, np.exp(distances[rows] / -width)


def _clipped(bits: float, count: int) -> float:
    """Rounding may leave 0 or log2 N by a hair."""
    return float(min(max(bits, 0.0), np.log2(count)))
