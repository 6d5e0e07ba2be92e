"""Line searches for the strong Wolfe conditions, one a row, all rows at once.

J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), algorithms 3.5 and 3.6, kept as
one state: ``low`` is the best step so far with sufficient decrease (0 at first), ``high`` the other
end of the bracket (infinite until there is one). Trial steps come from cubic interpolation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

SUFFICIENT, CURVATURE = 1e-4, 0.9
MOST_TRIALS = 25
_MARGIN = 0.1
_FURTHEST = 10.0


@dataclass
class End:
    """One end of each row's bracket, numbers on the CPU: step, value and slope (rows,)."""

    step: FloatArray
    value: FloatArray
    slope: FloatArray

    def put(self, mask: BoolArray, other: End) -> None:
        """Take over the masked rows of another end."""
        for name in ("step", "value", "slope"):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, np.where(mask, theirs, mine))

    def rows(self, index: NDArray[np.int64]) -> End:
        """Some of the rows."""
        return End(self.step[index], self.value[index], self.slope[index])

    def store(self, index: NDArray[np.int64], other: End) -> None:
        """Write rows back."""
        self.step[index], self.value[index], self.slope[index] = (
            other.step,
            other.value,
            other.slope,
        )


@dataclass
class Decision:
    """What a trial means, by row."""

    accepted: BoolArray
    better: BoolArray
    """The trial is the new low end."""


def judge(start: End, low: End, high: End, trial: End) -> Decision:
    """Accept a trial step, or narrow (in place) the bracket [low, high] by it.

    Args:
        start: value and slope at step 0.
        low: the best end; changed where the trial is better.
        high: the other end; changed where the bracket narrows.
        trial: what was found at the trial step; not finite counts as too far.
    """
    finite = np.isfinite(trial.value) & np.isfinite(trial.slope)
    enough = trial.value <= start.value + SUFFICIENT * trial.step * start.slope
    descends = finite & enough & ((trial.value < low.value) | (low.step == 0))
    accepted = descends & (np.abs(trial.slope) <= -CURVATURE * start.slope)
    better = descends & ~accepted
    behind = better & (trial.slope * np.sign(high.step - low.step) >= 0)
    high.put(behind, low)
    high.put(~descends, trial)
    return Decision(accepted, better)


@np.errstate(all="ignore")
def next_step(before: End, low: End, high: End) -> FloatArray:
    """The next trial step: inside the bracket, or further out where there is none.

    Args:
        before: the low end before the last trial.
        low: the low end.
        high: the other end.
    """
    open_ended = np.isinf(high.step)
    near, far = np.minimum(low.step, high.step), np.maximum(low.step, high.step)
    margin = _MARGIN * (far - near)
    inside = _cubic(low, high, near + margin, far - margin)
    reach = low.step + 0.01 * (low.step - before.step)
    return np.where(open_ended, _cubic(before, low, reach, _FURTHEST * low.step), inside)


def _cubic(a: End, b: End, least: FloatArray, most: FloatArray) -> FloatArray:
    """Minimum of the cubic through two ends, kept inside [least, most]; their middle without one.

    Nocedal and Wright, equation 3.59.
    """
    gap = b.step - a.step
    d1 = a.slope + b.slope - 3 * (a.value - b.value) / (a.step - b.step)
    d2 = np.sign(gap) * np.sqrt(d1**2 - a.slope * b.slope)
    step = b.step - gap * (b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2)
    middle = (least + most) / 2
    return np.where(np.isfinite(step), np.clip(step, least, most), middle)
