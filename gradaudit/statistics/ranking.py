"""Ranks of values."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def rank(values: FloatArray) -> FloatArray:
    """Ranks (n,) from 1; ties share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place])
