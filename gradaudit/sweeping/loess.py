"""A smooth curve through scattered points (Cleveland 1979)."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def loess(x: Floats, y: Floats, at: Floats, span: float = 0.75) -> Floats:
    """Local linear regression with tricube weights over the nearest share of the points.

    Source: W. S. Cleveland, "Robust locally weighted regression and smoothing scatterplots"
    (1979), without the robustness iterations; Mo22, figure 3, draws its trend with it.

    Args:
        x: (points,).
        y: (points,).
        at: (places,) where the curve is wanted.
        span: share of the points that each fit sees, in (0, 1].

    Returns:
        (places,).
    """
    nearest = max(2, int(np.ceil(span * len(x))))
    distance = np.abs(x - at[:, None])
    reach = np.partition(distance, nearest - 1, axis=1)[:, nearest - 1 : nearest]
    reach = np.maximum(reach, np.finfo(float).tiny)
    weights = (1 - np.minimum(distance / reach, 1) ** 3) ** 3
    weights += (distance == 0) & (weights.sum(axis=1, keepdims=True) == 0)
    total = weights.sum(axis=1)
    x_mean, y_mean = weights @ x / total, weights @ y / total
    off = x - x_mean[:, None]
    spread = (weights * off**2).sum(axis=1)
    slope = np.divide(
        (weights * off * (y - y_mean[:, None])).sum(axis=1),
        spread,
        out=np.zeros_like(spread),
        where=spread > 1e-12 * total * reach[:, 0] ** 2,
    )
    fitted: Floats = y_mean + slope * (at - x_mean)
    return fitted
