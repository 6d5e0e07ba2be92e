"""L-BFGS with a strong Wolfe line search for many independent problems at once.

J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), algorithms 7.4 and 7.5. Every
evaluation is of one trial point of each problem that still runs; a problem whose line search is
done goes on to its next direction at once, whatever the others do.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.line_search import MOST_TRIALS, End, judge, next_step
from gradaudit.attacks.reconstruction.memory import Memory
from gradaudit.attacks.reconstruction.minimum import Minimum
from gradaudit.attacks.reconstruction.replay import Evaluation

INNER, EVALUATIONS = 20, 25
"""Of one outer step, as in torch's L-BFGS."""
HISTORY = 100
"""Pairs of differences that a direction is made of, as in the code of Deep Leakage."""
_STALLED, _PATIENCE = 1e-9, 20


def minimise(
    evaluate: Evaluation,
    start: Tensor,
    outer: int,
    *,
    history: int = HISTORY,
    tolerance: float = 0.0,
    advance: Callable[[int], None] = lambda units: None,
) -> Minimum:
    """Minimise one function from several starts.

    Args:
        evaluate: the function and its gradient, of rows.
        start: (rows, n).
        outer: outer steps, each of up to 20 steps or 25 evaluations.
        history: pairs of differences that a direction is made of.
        tolerance: a problem is done where its value is no larger.
        advance: told of every outer step that a row has used up.
    """
    search, told = _Search.begin(evaluate, start, history), 0
    while True:
        running = search.running(outer, tolerance)
        spent = int(search.spent(outer).sum())
        advance(spent - told)
        told = spent
        if not len(running):
            return search.minimum()
        search.tick(evaluate)


@dataclass
class _Search:
    """The state of every row."""

    points: Tensor
    gradients: Tensor
    start: End
    directions: Tensor
    low: End
    high: End
    best: Tensor
    step: Tensor
    trials: Tensor
    steps: Tensor
    seen: Tensor
    stalled: Tensor
    done: Tensor
    memory: Memory
    broken: Tensor = field(init=False)

    @classmethod
    def begin(cls, evaluate: Evaluation, start: Tensor, history: int) -> "_Search":
        values, gradients = evaluate(start)
        rows, none = len(start), torch.zeros_like(values)
        count = torch.zeros(rows, dtype=torch.int64, device=start.device)
        search = cls(
            points=start.clone(),
            gradients=gradients.clone(),
            start=End(none.clone(), values.clone(), none.clone()),
            directions=torch.zeros_like(start),
            low=End(none.clone(), values.clone(), none.clone()),
            high=End(none.clone(), none.clone(), none.clone()),
            best=gradients.clone(),
            step=none.clone(),
            trials=count.clone(),
            steps=count.clone(),
            seen=count + 1,
            stalled=count.clone(),
            done=~values.isfinite() | ~gradients.isfinite().all(dim=1),
            memory=Memory.empty(start, history),
        )
        search.broken = search.done.clone()
        search._set_out(torch.arange(rows, device=start.device), -gradients, gradients)
        return search

    def spent(self, outer: int) -> Tensor:
        """(rows,) outer steps used up."""
        spent = torch.maximum(self.steps // INNER, self.seen // EVALUATIONS)
        return spent.masked_fill(self.done, outer).clamp_max(outer)

    def running(self, outer: int, tolerance: float) -> Tensor:
        """Rows that go on."""
        self.done |= self.start.value <= tolerance
        self.done |= (self.steps >= outer * INNER) | (self.seen >= outer * EVALUATIONS)
        return (~self.done).nonzero().squeeze(1)

    def tick(self, evaluate: Evaluation) -> None:
        """Evaluate one trial of every running row and act on it."""
        rows = (~self.done).nonzero().squeeze(1)
        step, direction = self.step[rows], self.directions[rows]
        values, gradients = evaluate(self.points[rows] + step[:, None] * direction)
        self.seen[rows] += 1
        self.trials[rows] += 1
        trial = End(step, values, (gradients * direction).sum(dim=1))
        low, high = self.low.rows(rows), self.high.rows(rows)
        before = self.low.rows(rows)
        decision = judge(self.start.rows(rows), low, high, trial)
        take = decision.accepted | decision.better
        low.put(take, trial)
        self.low.store(rows, low)
        self.high.store(rows, high)
        self.best[rows] = torch.where(take[:, None], gradients, self.best[rows])
        self.step[rows] = next_step(before, low, high)
        ended = decision.accepted | self._exhausted(rows)
        self._finish(rows[ended & (self.low.step[rows] > 0)])
        self._give_up(rows[ended & (low.step <= 0)])

    def _exhausted(self, rows: Tensor) -> Tensor:
        """Line searches that cannot go on: too many trials, or a bracket of no width."""
        width = (self.high.step - self.low.step)[rows].abs()
        moved = width * self.directions[rows].abs().amax(dim=1)
        least = torch.finfo(moved.dtype).eps * self.points[rows].abs().amax(dim=1).clamp_min(1e-8)
        return (self.trials[rows] >= MOST_TRIALS) | (moved <= least)

    def _finish(self, rows: Tensor) -> None:
        """Move to the best step that the line search found and set out in the next direction."""
        if not len(rows):
            return
        moves = self.low.step[rows][:, None] * self.directions[rows]
        turns = self.best[rows] - self.gradients[rows]
        gained = self.start.value[rows] - self.low.value[rows]
        idle = gained <= _STALLED * self.start.value[rows].abs()
        self.stalled[rows] = torch.where(idle, self.stalled[rows] + 1, 0)
        self.points[rows] += moves
        self.gradients[rows] = self.best[rows]
        self.start.value[rows] = self.low.value[rows]
        self.steps[rows] += 1
        self.done[rows] |= self.stalled[rows] >= _PATIENCE
        gradients = self.gradients[rows]
        self._set_out(rows, self.memory.directions(rows, moves, turns, gradients), gradients)

    def _give_up(self, rows: Tensor) -> None:
        """No step goes down: forget the curvature, or end where there was none."""
        if not len(rows):
            return
        self.done[rows] |= self.memory.counts[rows] == 0
        self.memory.forget(rows)
        self._set_out(rows, -self.gradients[rows], self.gradients[rows])

    def _set_out(self, rows: Tensor, directions: Tensor, gradients: Tensor) -> None:
        """First trial steps in new directions; straight down where these do not descend."""
        slopes = (directions * gradients).sum(dim=1)
        wrong = ~(slopes < 0)
        self.memory.forget(rows[wrong])
        directions = torch.where(wrong[:, None], -gradients, directions)
        self.directions[rows] = directions
        self.start.slope[rows] = (directions * gradients).sum(dim=1)
        fresh = self.memory.counts[rows] == 0
        cautious = (1 / gradients.abs().sum(dim=1)).clamp_max(1.0)
        self.step[rows] = torch.where(fresh, cautious, torch.ones_like(cautious))
        self.low.store(rows, self.start.rows(rows))
        self.high.step[rows] = torch.inf
        self.trials[rows] = 0
        self.done[rows] |= self.start.slope[rows] == 0

    def minimum(self) -> Minimum:
        """Where every row stands."""
        finite = self.points.isfinite().all(dim=1) & self.start.value.isfinite()
        diverged = self.broken | ~finite
        return Minimum(self.points, self.start.value, diverged, self.steps, self.seen)
