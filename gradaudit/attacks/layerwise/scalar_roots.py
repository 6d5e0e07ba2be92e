"""All roots of a scalar equation on both half lines, by brackets."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

Function: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Of (points,) to (points,)."""

_GRID = np.logspace(-6, 6, 1201)
_PRECISION = float(4 * np.finfo(np.float64).eps)


def roots(left: Function, right: float) -> list[float]:
    """Every t with left(t) = right and 1e-6 ≤ |t| ≤ 1e6, positive ones first.

    The brackets are neighbours on a logarithmic grid. Where the left side turns between two points
    of it, its extremum is sought, so that two roots close together are not missed.

    Args:
        left: a continuous function.
        right: the constant.
    """

    def difference(t: float) -> float:
        return float(left(np.array([t]))[0]) - right

    found: list[float] = []
    for sign in (1.0, -1.0):
        points = _with_extrema(difference, sign * _GRID, left(sign * _GRID) - right)
        values = left(points) - right
        crossed = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
        found += [
            float(brentq(difference, points[n], points[n + 1], xtol=1e-300, rtol=_PRECISION))
            for n in crossed
        ]
        found += points[values == 0].tolist()
    return found


def _with_extrema(
    difference: Callable[[float], float], points: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The points, in order of size, with those where the difference comes closest to zero."""
    size = np.abs(values)
    turns = np.flatnonzero((size[1:-1] < size[:-2]) & (size[1:-1] < size[2:])) + 1
    found = [_closest(difference, points[n - 1 : n + 2], float(np.sign(values[n]))) for n in turns]
    return np.sort(np.concatenate([points, found]))


def _closest(
    difference: Callable[[float], float], points: NDArray[np.float64], sign: float
) -> float:
    """Where a difference of this sign is smallest between the outer ones of three points."""
    low, high = sorted((float(points[0]), float(points[2])))
    end = minimize_scalar(lambda t: sign * difference(float(t)), bounds=(low, high))
    return float(end.x)
