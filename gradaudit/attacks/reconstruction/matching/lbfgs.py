"""L-BFGS with a strong Wolfe line search for many independent problems at once.

J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), algorithms 7.4 and 7.5. Every
evaluation is of one trial point of each problem that still runs; a problem whose line search is
done goes on to its next direction at once, whatever the others do.

In mixed precision all problems are searched in single precision until rounding hides what a step
changes of the value of one, or none goes down; then all go on in double precision with the
curvature that they have seen. They go over together, since evaluations are recorded for each number
of rows.

Line searches, algorithms 3.5 and 3.6, are kept as one state: ``low`` is the best step so far with
sufficient decrease (0 at first), ``high`` the other end of the bracket (infinite until there is
one). Trial steps come from cubic interpolation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.attacks.reconstruction.matching.curvature import IntArray, Memory, some_of
from gradaudit.attacks.reconstruction.matching.objectives import Evaluation, Minimum

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Noise = Callable[[FloatArray], FloatArray]
INNER, EVALUATIONS = 20, 25
"""Inner steps and evaluations of one outer step, as in torch's L-BFGS."""
HISTORY = 100
"""Pairs of differences that a direction is made of, as in the code of Deep Leakage."""
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
    noise: Noise | None = None,
    advance: Callable[[int], None] = lambda units: None,
) -> Minimum:
    """Minimise one function from several starts.

    Args:
        evaluate: the function and its gradient, of rows, in their precision.
        start: (rows, n).
        outer: outer steps, each of up to 20 steps or 25 evaluations.
        tolerance: a problem is done where its value is no larger.
        noise: by how much rounding may change values, by value. A search that starts in single
            precision goes on in double precision where no step gains more.
        advance: called for every outer step that a row has used up.
    """
    hidden = noise if start.dtype == torch.float32 else None
    search, reported = _Search.begin(evaluate, start, hidden), 0
    while True:
        running = search.running(outer, tolerance)
        spent = search.spent(outer)
        advance(spent - reported)
        reported = spent
        if not running and search.noise is None:
            return search.minimum()
        with np.errstate(all="ignore"):
            if running:
                search.tick(evaluate)
            else:
                search = search.in_double_precision(evaluate)


@dataclass
class _Search:
    """The state of every row: vectors where the problem is, single numbers on the CPU.

    These are read once an evaluation, all at once, as the CPU waits for a device meanwhile: what is
    known of a new direction is read with the first trial of it.
    """

    points: Tensor
    gradients: Tensor
    directions: Tensor
    ahead: Tensor
    """(rows, 5) of the direction: slope, first step, longest move and longest coordinate, and
    whether it goes straight down."""
    best: Tensor
    memory: Memory
    start: End
    low: End
    high: End
    step: FloatArray
    furthest: FloatArray
    size: FloatArray
    trials: IntArray
    steps: IntArray
    seen: IntArray
    stalled: IntArray
    unread: BoolArray
    straight: BoolArray
    done: BoolArray
    broken: BoolArray
    noise: Noise | None
    """Of values, where double precision follows."""
    blind: BoolArray
    """Whether it is needed."""

    @classmethod
    def begin(cls, evaluate: Evaluation, start: Tensor, noise: Noise | None = None) -> _Search:
        values, gradients = evaluate(start)
        fine = values.isfinite() & gradients.isfinite().all(dim=1)
        none, count = np.zeros(len(start)), np.zeros(len(start), dtype=np.int64)
        numbers, finite = _numbers(values, fine.to(values))
        search = cls(
            points=start.clone(),
            gradients=gradients.clone(),
            directions=torch.zeros_like(start),
            ahead=start.new_zeros(len(start), 5),
            best=gradients.clone(),
            memory=Memory.empty(start, HISTORY),
            start=End(none.copy(), numbers, none.copy()),
            low=End(none.copy(), numbers.copy(), none.copy()),
            high=End(none.copy(), none.copy(), none.copy()),
            step=none.copy(),
            furthest=none.copy(),
            size=none.copy(),
            trials=count.copy(),
            steps=count.copy(),
            seen=count + 1,
            stalled=count.copy(),
            unread=finite > 0,
            straight=finite > 0,
            done=finite == 0,
            broken=finite == 0,
            noise=noise,
            blind=np.zeros(len(start), dtype=bool),
        )
        every = np.arange(len(start))
        search._set_out(every, -gradients, gradients)
        search._read(every, _numbers(*search.ahead.unbind(1)))
        return search

    def in_double_precision(self, evaluate: Evaluation) -> _Search:
        """The search that goes on from the points, with the curvature, of this one.

        Points are evaluated again, and counted once.
        """
        search = _Search.begin(evaluate, self.points.double())
        search.steps, search.seen, search.memory = self.steps, self.seen, self.memory.double()
        every, still = np.arange(len(self.points)), torch.zeros_like(search.points)
        directions = search.memory.directions(every, still, still, search.gradients)
        search._set_out(every, directions, search.gradients)
        return search

    def spent(self, outer: int) -> int:
        """Outer steps used up by all rows together."""
        spent = np.maximum(self.steps // INNER, self.seen // EVALUATIONS)
        ended = self.done & (self.noise is None)
        return int(np.where(ended, outer, np.minimum(spent, outer)).sum())

    def running(self, outer: int, tolerance: float) -> bool:
        self.done |= self.start.value <= tolerance
        self.done |= (self.steps >= outer * INNER) | (self.seen >= outer * EVALUATIONS)
        return not (self.done.all() or self.blind.any())

    def tick(self, evaluate: Evaluation) -> None:
        rows = np.flatnonzero(~self.done)
        direction, ahead, step = self._ahead_of(rows)
        values, gradients = evaluate(self.points[self._at(rows)] + step * direction)
        trial = self._trial(rows, values, (gradients * direction).sum(dim=1), ahead)
        self.seen[rows] += 1
        self.trials[rows] += 1
        low, high, before = self.low.rows(rows), self.high.rows(rows), self.low.rows(rows)
        decision = judge(self.start.rows(rows), low, high, trial)
        take = decision.accepted | decision.better
        low.put(take, trial)
        self.low.store(rows, low)
        self.high.store(rows, high)
        self._keep(rows, take, gradients)
        self.step[rows] = next_step(before, low, high)
        ended = decision.accepted | self._exhausted(rows) | self._hidden(rows, trial)
        self._finish(rows[ended & (low.step > 0)])
        self._give_up(rows[ended & (low.step <= 0)])

    def _ahead_of(self, rows: IntArray) -> tuple[Tensor, Tensor, Tensor]:
        """Directions, what is known of them, and the next steps, (rows, 1)."""
        at, new = self._at(rows), self.unread[rows]
        ahead = self.ahead[at]
        step = ahead[:, 1:2] if new.all() else self._column(self.step[rows])
        if new.any() and not new.all():
            step = torch.where(self._column(new), ahead[:, 1:2], step)
        return self.directions[at], ahead, step

    def _trial(self, rows: IntArray, values: Tensor, slopes: Tensor, ahead: Tensor) -> End:
        new = self.unread[rows]
        found = _numbers(values, slopes, *(ahead.unbind(1) if new.any() else ()))
        self._read(rows[new], found[2:, new])
        return End(self.step[rows], found[0], found[1])

    def _read(self, rows: IntArray, found: FloatArray) -> None:
        """The numbers that a line search needs of new directions, (5, chosen)."""
        if not len(rows):
            return
        slope, self.step[rows], self.furthest[rows], self.size[rows], straight = found
        self.start.slope[rows] = slope
        self.straight[rows] = straight > 0
        self.memory.most[rows[straight > 0]] = 0
        self.low.store(rows, self.start.rows(rows))
        self.high.step[rows] = np.inf
        self.trials[rows] = 0
        self.done[rows] |= slope == 0
        self.unread[rows] = False

    def _keep(self, rows: IntArray, take: BoolArray, gradients: Tensor) -> None:
        if take.all():
            self.best[self._at(rows)] = gradients
        elif take.any():
            chosen = some_of(gradients, np.flatnonzero(take))
            self.best[self._at(rows[take])] = gradients[chosen]

    def _exhausted(self, rows: IntArray) -> BoolArray:
        """Line searches that cannot go on: too many trials, or a bracket of no width."""
        moved = np.abs(self.high.step - self.low.step)[rows] * self.furthest[rows]
        least = torch.finfo(self.points.dtype).eps * np.maximum(self.size[rows], 1e-8)
        return np.asarray((self.trials[rows] >= MOST_TRIALS) | (moved <= least))

    def _hidden(self, rows: IntArray, trial: End) -> BoolArray:
        """Steps whose change of the value may be rounding; not first ones, which are short."""
        if self.noise is None:
            return np.zeros(len(rows), dtype=bool)
        before = self.start.value[rows]
        changes = np.abs(trial.value - before)
        return np.asarray((changes <= self.noise(before)) & ~self.straight[rows])

    def _finish(self, rows: IntArray) -> None:
        """Move to the best step that the line search found and set out in the next direction."""
        if not len(rows):
            return
        at = self._at(rows)
        moves = self._column(self.low.step[rows]) * self.directions[at]
        gradients = self.best[at].clone()
        turns = gradients - self.gradients[at]
        gained = self.start.value[rows] - self.low.value[rows]
        idle = gained <= _STALLED * np.abs(self.start.value[rows])
        self.stalled[rows] = np.where(idle, self.stalled[rows] + 1, 0)
        self.points[at] += moves
        self.gradients[at] = gradients
        self.start.value[rows] = self.low.value[rows]
        self.steps[rows] += 1
        self.done[rows] |= self.stalled[rows] >= _PATIENCE
        if self.noise is not None:
            self.blind[rows] = gained <= self.noise(self.start.value[rows])
        self._set_out(rows, self.memory.directions(rows, moves, turns, gradients), gradients)

    def _give_up(self, rows: IntArray) -> None:
        """No step goes down: forget the curvature, or end where there was none."""
        if not len(rows):
            return
        if self.noise is not None:
            self.blind[rows] = True
            return
        self.done[rows] |= self.straight[rows]
        self.memory.forget(rows)
        gradients = self.gradients[self._at(rows)]
        self._set_out(rows, -gradients, gradients)

    def _set_out(self, rows: IntArray, directions: Tensor, gradients: Tensor) -> None:
        """First trial steps in new directions; straight down where these do not descend."""
        at = self._at(rows)
        slopes = (directions * gradients).sum(dim=1)
        wrong = ~(slopes < 0)
        self.memory.forget(rows, wrong)
        directions = torch.where(wrong[:, None], -gradients, directions)
        slopes = torch.where(wrong, -gradients.square().sum(dim=1), slopes)
        straight = self.memory.counts[at] == 0
        first = torch.where(straight, gradients.abs().sum(dim=1).reciprocal().clamp(max=1), 1)
        longest = directions.abs().amax(dim=1), self.points[at].abs().amax(dim=1)
        self.ahead[at] = torch.stack([slopes, first, *longest, straight.to(slopes)], dim=1)
        self.directions[at] = directions
        self.unread[rows] = True

    def _at(self, rows: IntArray) -> slice | Tensor:
        return some_of(self.points, rows)

    def _column(self, numbers: FloatArray | BoolArray) -> Tensor:
        """Move numbers to the problem's device and precision as a column (rows, 1)."""
        dtype = torch.bool if numbers.dtype == np.bool_ else self.points.dtype
        column = torch.from_numpy(numbers)[:, None]
        return column.to(self.points.device, dtype, non_blocking=True)

    def minimum(self) -> Minimum:
        like = self.points
        broken = torch.from_numpy(self.broken).to(like.device)
        values = torch.from_numpy(self.start.value).to(like)
        return Minimum(
            points=like,
            values=values,
            diverged=broken | ~(like.isfinite().all(dim=1) & values.isfinite()),
            iterations=torch.from_numpy(self.steps).to(like.device),
            evaluations=torch.from_numpy(self.seen).to(like.device),
        )


def _numbers(*columns: Tensor) -> FloatArray:
    """Transfer columns at once to the CPU in float64, (columns, rows)."""
    return np.asarray(torch.stack(columns).double().cpu().numpy())


@dataclass
class End:
    """One end of each row's bracket: step, value and slope (rows,), on the CPU."""

    step: FloatArray
    value: FloatArray
    slope: FloatArray

    def put(self, mask: BoolArray, other: End) -> None:
        """Take over the masked rows of another end."""
        for name in ("step", "value", "slope"):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, np.where(mask, theirs, mine))

    def rows(self, index: NDArray[np.int64]) -> End:
        """The state of some of the rows."""
        return End(self.step[index], self.value[index], self.slope[index])

    def store(self, index: NDArray[np.int64], other: End) -> None:
        """Write rows back."""
        for name in ("step", "value", "slope"):
            getattr(self, name)[index] = getattr(other, name)


class LineSearchDecision(NamedTuple):
    """The decision on a trial step, by row: ``better`` where it is the new low end."""

    accepted: BoolArray
    better: BoolArray


def judge(start: End, low: End, high: End, trial: End) -> LineSearchDecision:
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
    return LineSearchDecision(accepted, better)


@np.errstate(all="ignore")
def next_step(before: End, low: End, high: End) -> FloatArray:
    """The next trial step: inside the bracket, or further out where there is none."""
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
