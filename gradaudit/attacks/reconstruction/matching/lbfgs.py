"""L-BFGS with a strong Wolfe line search for many independent problems at once.

J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), algorithms 7.4 and 7.5. Every
evaluation is of one trial point of each problem that still runs; a problem whose line search is
done goes on to its next direction at once, whatever the others do.

Line searches, algorithms 3.5 and 3.6, are kept as one state: ``low`` is the best step so far with
sufficient decrease (0 at first), ``high`` the other end of the bracket (infinite until there is
one). Trial steps come from cubic interpolation.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.matching.curvature import Curvature
from gradaudit.attacks.reconstruction.matching.objectives import Evaluation, Minimum

INNER, EVALUATIONS = 20, 25  # of one outer step, as in torch's L-BFGS
HISTORY = 100  # pairs that a direction is made of, as in the code of Deep Leakage
_STALLED, _PATIENCE = 1e-9, 20
SUFFICIENT, CURVATURE = 1e-4, 0.9
MOST_TRIALS = 25
_MARGIN = 0.1
_FURTHEST = 10.0


def minimise(
    evaluate: Evaluation,
    start: Tensor,
    outer: int,
    *,
    tolerance: float = 0.0,
    advance: Callable[[int], None] = lambda units: None,
) -> Minimum:
    """Minimise one function from several starts.

    Args:
        evaluate: the function and its gradient, of rows.
        start: (rows, n).
        outer: outer steps, each of up to 20 steps or 25 evaluations.
        tolerance: a problem is done where its value is no larger.
        advance: called for every outer step that a row has used up.
    """
    search, live, reported = _Search(evaluate, start), torch.arange(len(start)), 0
    found = search.minimum()
    while len(live):
        done, spent = search.state(outer, tolerance)
        used = outer * (len(start) - len(live)) + int(torch.where(done, outer, spent).sum())
        advance(used - reported)
        reported = used
        if done.any():
            ended, going = (mask.nonzero()[:, 0].to(start.device) for mask in (done, ~done))
            found.put(live[done].to(start.device), search.minimum(), ended)
            search, live = search.rows(going), live[~done]
        if len(live):
            search.tick()
    return found


class _Search:
    """The state of every row; an end of a bracket is (rows, 3), a step, its value and slope.

    Nothing of it is read but once an evaluation, as the CPU waits for a device meanwhile.
    """

    def __init__(self, evaluate: Evaluation, start: Tensor) -> None:
        values, gradients = evaluate(start)
        self.evaluate, self.points, self.gradients = evaluate, start.clone(), gradients.clone()
        self.directions, self.best = torch.zeros_like(start), gradients.clone()
        self.curvature = Curvature(start, HISTORY)
        self.step = torch.zeros_like(values)
        self.start = torch.stack([self.step, values, self.step], dim=1)
        self.low, self.high = self.start.clone(), self.start.clone()
        none = torch.zeros(len(start), dtype=torch.int64, device=start.device)
        self.trials, self.steps, self.seen, self.stalled = none, none, none + 1, none
        self.broken = ~(values.isfinite() & gradients.isfinite().all(dim=1))
        self.done = self.broken
        self._set_out(torch.ones_like(self.done), -gradients)

    def rows(self, at: Tensor) -> _Search:
        """The search of some rows alone."""
        search = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(search, name, value[at])
        search.curvature = self.curvature.rows(at)
        return search

    def state(self, outer: int, tolerance: float) -> tuple[Tensor, Tensor]:
        """Return which rows are done, and the outer steps that each has used up, on the CPU."""
        done = self.done | (self.start[:, 1] <= tolerance)
        done |= (self.steps >= outer * INNER) | (self.seen >= outer * EVALUATIONS)
        spent = torch.maximum(self.steps // INNER, self.seen // EVALUATIONS)
        done, spent = torch.stack([done.long(), spent]).cpu()
        return done.bool(), spent

    def tick(self) -> None:
        """Evaluate the next trial step of every row, and set out anew where a search ends."""
        values, gradients = self.evaluate(self.points + self.step[:, None] * self.directions)
        slopes = (gradients * self.directions).sum(dim=1)
        trial, before = torch.stack([self.step, values, slopes], dim=1), self.low
        self.seen, self.trials = self.seen + 1, self.trials + 1
        accepted, self.low, self.high = judge(self.start, before, self.high, trial)
        better = self.low[:, 0] != before[:, 0]
        self.best = torch.where(better[:, None], gradients, self.best)
        self.step = next_step(before, self.low, self.high)
        ended = accepted | self._exhausted()
        moved = ended & (self.low[:, 0] > 0)
        self._move(moved)
        stuck = ended & ~moved  # forget the curvature, or end where there was none
        self.done = self.done | (stuck & (self.curvature.counts == 0))
        self.curvature.forget(stuck)
        self._set_out(ended, self.curvature.directions(self.gradients))

    def _exhausted(self) -> Tensor:
        """Line searches that cannot go on: too many trials, or a bracket of no width."""
        width = (self.high[:, 0] - self.low[:, 0]).abs() * self.directions.abs().amax(dim=1)
        size = self.points.abs().amax(dim=1).clamp(min=1e-8)
        least = torch.finfo(self.points.dtype).eps * size
        return (self.trials >= MOST_TRIALS) | (width <= least)

    def _move(self, which: Tensor) -> None:
        """Move some rows to the best step that the line search found."""
        moves = torch.where(which[:, None], self.low[:, :1] * self.directions, 0)
        self.curvature.keep(which, moves, self.best - self.gradients)
        idle = self.start[:, 1] - self.low[:, 1] <= _STALLED * self.start[:, 1].abs()
        stalled = torch.where(idle, self.stalled + 1, 0)
        self.stalled = torch.where(which, stalled, self.stalled)
        self.done = self.done | (self.stalled >= _PATIENCE)
        self.points = self.points + moves
        self.gradients = torch.where(which[:, None], self.best, self.gradients)
        self.start[:, 1] = torch.where(which, self.low[:, 1], self.start[:, 1])
        self.steps = self.steps + which

    def _set_out(self, which: Tensor, directions: Tensor) -> None:
        """First trial steps in new directions; straight down where these do not descend."""
        slopes = (directions * self.gradients).sum(dim=1)
        wrong = ~(slopes < 0)
        self.curvature.forget(which & wrong)
        directions = torch.where(wrong[:, None], -self.gradients, directions)
        slopes = torch.where(wrong, -self.gradients.square().sum(dim=1), slopes)
        first = self.gradients.abs().sum(dim=1).reciprocal().clamp(max=1)
        first = torch.where(self.curvature.counts == 0, first, 1)
        self.directions = torch.where(which[:, None], directions, self.directions)
        self.start[:, 2] = torch.where(which, slopes, self.start[:, 2])
        self.step = torch.where(which, first, self.step)
        self.low = torch.where(which[:, None], self.start, self.low)
        far = torch.zeros_like(self.start)
        far[:, 0] = torch.inf
        self.high = torch.where(which[:, None], far, self.high)
        self.trials = torch.where(which, 0, self.trials)
        self.done = self.done | (which & (slopes == 0))

    def minimum(self) -> Minimum:
        """Return where every row is."""
        values = self.start[:, 1].clone()
        finite = self.points.isfinite().all(dim=1) & values.isfinite()
        return Minimum(self.points, values, self.broken | ~finite, self.steps, self.seen)


def judge(start: Tensor, low: Tensor, high: Tensor, trial: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Accept trial steps, or narrow brackets by them; all ends are (rows, 3).

    A trial that is not finite counts as too far. Returns which rows' trials are accepted, (rows,),
    and the new ends.
    """
    step, value, slope = trial.unbind(1)
    finite = value.isfinite() & slope.isfinite()
    enough = value <= start[:, 1] + SUFFICIENT * step * start[:, 2]
    descends = finite & enough & ((value < low[:, 1]) | (low[:, 0] == 0))
    accepted = descends & (slope.abs() <= -CURVATURE * start[:, 2])
    behind = descends & ~accepted & (slope * (high[:, 0] - low[:, 0]).sign() >= 0)
    high = torch.where(behind[:, None], low, torch.where(descends[:, None], high, trial))
    return accepted, torch.where(descends[:, None], trial, low), high


def next_step(before: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The next trial step: inside the bracket, or beyond ``low`` where there is none."""
    near, far = torch.minimum(low, high)[:, 0], torch.maximum(low, high)[:, 0]
    margin = _MARGIN * (far - near)
    inside = _cubic(low, high, near + margin, far - margin)
    reach = low[:, 0] + 0.01 * (low[:, 0] - before[:, 0])
    beyond = _cubic(before, low, reach, _FURTHEST * low[:, 0])
    return torch.where(high[:, 0].isinf(), beyond, inside)


def _cubic(a: Tensor, b: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """Minimum of the cubic through two ends (equation 3.59) in [least, most], or their middle."""
    (at, f, slope), (to, g, turn) = a.unbind(1), b.unbind(1)
    d1 = slope + turn - 3 * (f - g) / (at - to)
    d2 = (to - at).sign() * (d1.square() - slope * turn).sqrt()
    step = to - (to - at) * (turn + d2 - d1) / (turn - slope + 2 * d2)
    middle = (least + most) / 2
    return torch.where(step.isfinite(), torch.minimum(torch.maximum(step, least), most), middle)
