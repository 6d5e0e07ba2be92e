"""Intervals of what attacks score. scipy is imported when one is computed."""

import math
from typing import TYPE_CHECKING

from pydantic import JsonValue

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.95
FEWEST = 5


def clopper_pearson(hits: int, count: int) -> tuple[float, float]:
    """Exact two-sided interval of a share."""
    from scipy.stats import beta

    tail = (1 - CONFIDENCE) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return low, high


def student(
    values: "NDArray[np.float64]", within: tuple[float, float] = (0.0, math.inf)
) -> tuple[float, float] | None:
    """Student's interval of a mean, cut at what the values can be.

    None for fewer than five values, of which it would say nothing, or where one is infinite.
    """
    import numpy as np
    from scipy.stats import t

    if len(values) < FEWEST or not np.isfinite(values).all():
        return None
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1))
    mean, half = float(values.mean()), half / math.sqrt(len(values))
    return max(mean - half, within[0]), min(mean + half, within[1])


ENOUGH = 20
"""Updates, below which an interval over them is not to be trusted."""


def doubts(updates: int, options: str) -> dict[str, JsonValue]:
    """Details of a row whose interval is over too few updates."""
    if updates >= ENOUGH:
        return {}
    why = f"the interval is over {updates} updates, and takes {ENOUGH}: raise {options}"
    return {"imprecise": True, "imprecise_because": why}
