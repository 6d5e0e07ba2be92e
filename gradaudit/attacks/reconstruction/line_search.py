"""Line searches for the strong Wolfe conditions, one a row, all rows at once.

J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), algorithms 3.5 and 3.6, kept as
one state: ``low`` is the best step so far with sufficient decrease (0 at first), ``high`` the other
end of the bracket (infinite until there is one). Trial steps come from cubic interpolation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SUFFICIENT, CURVATURE = 1e-4, 0.9
MOST_TRIALS = 25
_MARGIN = 0.1
_FURTHEST = 10.0


@dataclass
class End:
    """One end of each row's bracket: step, value, slope (rows,) and gradient (rows, n)."""

    step: Tensor
    value: Tensor
    slope: Tensor

    def put(self, mask: Tensor, other: "End") -> None:
        """Take over the masked rows of another end."""
        for name in ("step", "value", "slope"):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, torch.where(mask, theirs, mine))

    def rows(self, index: Tensor) -> "End":
        """Some of the rows."""
        return End(self.step[index], self.value[index], self.slope[index])

    def store(self, index: Tensor, other: "End") -> None:
        """Write rows back."""
        self.step[index], self.value[index], self.slope[index] = (
            other.step,
            other.value,
            other.slope,
        )


@dataclass
class Decision:
    """What a trial means, by row."""

    accepted: Tensor
    better: Tensor
    """The trial is the new low end."""


def judge(start: End, low: End, high: End, trial: End) -> Decision:
    """Accept a trial step, or narrow (in place) the bracket [low, high] by it.

    Args:
        start: value and slope at step 0.
        low: the best end; changed where the trial is better.
        high: the other end; changed where the bracket narrows.
        trial: what was found at the trial step; not finite counts as too far.
    """
    finite = trial.value.isfinite() & trial.slope.isfinite()
    enough = trial.value <= start.value + SUFFICIENT * trial.step * start.slope
    descends = finite & enough & ((trial.value < low.value) | (low.step == 0))
    accepted = descends & (trial.slope.abs() <= -CURVATURE * start.slope)
    better = descends & ~accepted
    behind = better & (trial.slope * torch.sign(high.step - low.step) >= 0)
    high.put(behind, low)
    high.put(~descends, trial)
    return Decision(accepted, better)


def next_step(before: End, low: End, high: End) -> Tensor:
    """The next trial step: inside the bracket, or further out where there is none.

    Args:
        before: the low end before the last trial.
        low: the low end.
        high: the other end.
    """
    open_ended = high.step.isinf()
    near, far = torch.minimum(low.step, high.step), torch.maximum(low.step, high.step)
    margin = _MARGIN * (far - near)
    inside = _cubic(low, high, near + margin, far - margin)
    reach = low.step + 0.01 * (low.step - before.step)
    return torch.where(open_ended, _cubic(before, low, reach, _FURTHEST * low.step), inside)


def _cubic(a: End, b: End, least: Tensor, most: Tensor) -> Tensor:
    """Minimum of the cubic through two ends, kept inside [least, most]; their middle without one.

    Nocedal and Wright, equation 3.59.
    """
    gap = b.step - a.step
    d1 = a.slope + b.slope - 3 * (a.value - b.value) / (a.step - b.step)
    d2 = torch.sign(gap) * (d1.square() - a.slope * b.slope).sqrt()
    step = b.step - gap * (b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2)
    middle = (least + most) / 2
    return torch.where(step.isfinite(), step.clamp(least, most), middle)
