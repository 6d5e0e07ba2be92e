"""L-BFGS with a strong Wolfe line search for many independent problems at once.

J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), algorithms 7.4 and 7.5. Every
evaluation is of one trial point of each problem that still runs; a problem whose line search is
done goes on to its next direction at once, whatever the others do.

The two loops of algorithm 7.4 are solved as triangular systems, which needs inner products of the
pairs alone (R. Byrd, J. Nocedal and R. Schnabel, "Representations of quasi-Newton matrices", 1994):
the pairs, by far the largest part, are read twice an iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.attacks.reconstruction.line_search import (
    MOST_TRIALS,
    BoolArray,
    End,
    FloatArray,
    judge,
    next_step,
)
from gradaudit.attacks.reconstruction.objectives import Evaluation, Minimum

IntArray = NDArray[np.int64]

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
    search, reported = _Search.begin(evaluate, start, history), 0
    while True:
        running = search.running(outer, tolerance)
        spent = search.spent(outer)
        advance(spent - reported)
        reported = spent
        if not running:
            return search.minimum()
        with np.errstate(all="ignore"):
            search.tick(evaluate)


@dataclass
class _Search:
    """The state of every row: vectors where the problem is, single numbers on the CPU."""

    points: Tensor
    gradients: Tensor
    directions: Tensor
    best: Tensor
    memory: Memory
    start: End
    low: End
    high: End
    step: FloatArray
    trials: IntArray
    steps: IntArray
    seen: IntArray
    stalled: IntArray
    done: BoolArray
    broken: BoolArray

    @classmethod
    def begin(cls, evaluate: Evaluation, start: Tensor, history: int) -> _Search:
        values, gradients = evaluate(start)
        fine = values.isfinite() & gradients.isfinite().all(dim=1)
        none, count = np.zeros(len(start)), np.zeros(len(start), dtype=np.int64)
        (numbers,) = _numbers(values)
        search = cls(
            points=start.clone(),
            gradients=gradients.clone(),
            directions=torch.zeros_like(start),
            best=gradients.clone(),
            memory=Memory.empty(start, history),
            start=End(none.copy(), numbers, none.copy()),
            low=End(none.copy(), numbers.copy(), none.copy()),
            high=End(none.copy(), none.copy(), none.copy()),
            step=none.copy(),
            trials=count.copy(),
            steps=count.copy(),
            seen=count + 1,
            stalled=count.copy(),
            done=~fine.cpu().numpy(),
            broken=~fine.cpu().numpy(),
        )
        search._set_out(np.arange(len(start)), -gradients, gradients)
        return search

    def spent(self, outer: int) -> int:
        """Outer steps used up by all rows together."""
        spent = np.maximum(self.steps // INNER, self.seen // EVALUATIONS)
        return int(np.where(self.done, outer, np.minimum(spent, outer)).sum())

    def running(self, outer: int, tolerance: float) -> bool:
        """Whether some rows go on."""
        self.done |= self.start.value <= tolerance
        self.done |= (self.steps >= outer * INNER) | (self.seen >= outer * EVALUATIONS)
        return not self.done.all()

    def tick(self, evaluate: Evaluation) -> None:
        """Evaluate one trial of every running row and act on it."""
        rows = np.flatnonzero(~self.done)
        at, step = self._at(rows), self.step[rows]
        direction = self.directions[at]
        values, gradients = evaluate(self.points[at] + self._column(step) * direction)
        self.seen[rows] += 1
        self.trials[rows] += 1
        trial = End(step, *_numbers(values, (gradients * direction).sum(dim=1)))
        low, high, before = self.low.rows(rows), self.high.rows(rows), self.low.rows(rows)
        decision = judge(self.start.rows(rows), low, high, trial)
        take = decision.accepted | decision.better
        low.put(take, trial)
        self.low.store(rows, low)
        self.high.store(rows, high)
        self.best[self._at(rows[take])] = gradients if take.all() else gradients[take]
        self.step[rows] = next_step(before, low, high)
        ended = decision.accepted.copy()
        ended[~ended] = self._exhausted(rows[~ended])
        self._finish(rows[ended & (low.step > 0)])
        self._give_up(rows[ended & (low.step <= 0)])

    def _exhausted(self, rows: IntArray) -> BoolArray:
        """Line searches that cannot go on: too many trials, or a bracket of no width."""
        if not len(rows):
            return np.zeros(0, dtype=np.bool_)
        furthest, size = _numbers(
            self.directions[rows].abs().amax(dim=1), self.points[rows].abs().amax(dim=1)
        )
        moved = np.abs(self.high.step - self.low.step)[rows] * furthest
        least = torch.finfo(self.points.dtype).eps * np.maximum(size, 1e-8)
        exhausted: BoolArray = (self.trials[rows] >= MOST_TRIALS) | (moved <= least)
        return exhausted

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
        self._set_out(rows, self.memory.directions(rows, moves, turns, gradients), gradients)

    def _give_up(self, rows: IntArray) -> None:
        """No step goes down: forget the curvature, or end where there was none."""
        if not len(rows):
            return
        self.done[rows] |= self.memory.counts[rows] == 0
        self.memory.forget(rows)
        gradients = self.gradients[rows]
        self._set_out(rows, -gradients, gradients)

    def _set_out(self, rows: IntArray, directions: Tensor, gradients: Tensor) -> None:
        """First trial steps in new directions; straight down where these do not descend."""
        slopes, lengths, squares = _numbers(
            (directions * gradients).sum(dim=1),
            gradients.abs().sum(dim=1),
            gradients.square().sum(dim=1),
        )
        wrong = ~(slopes < 0)
        if wrong.any():
            self.memory.forget(rows[wrong])
            directions[wrong] = -gradients[wrong]
        self.directions[self._at(rows)] = directions
        self.start.slope[rows] = slopes = np.where(wrong, -squares, slopes)
        fresh = self.memory.counts[rows] == 0
        with np.errstate(divide="ignore"):
            self.step[rows] = np.where(fresh, np.minimum(1 / lengths, 1.0), 1.0)
        self.low.store(rows, self.start.rows(rows))
        self.high.step[rows] = np.inf
        self.trials[rows] = 0
        self.done[rows] |= slopes == 0

    def _at(self, rows: IntArray) -> slice | IntArray:
        """An index of some rows; no copy where they are all."""
        return slice(None) if len(rows) == len(self.points) else rows

    def _column(self, numbers: FloatArray) -> Tensor:
        return torch.from_numpy(numbers).to(self.points)[:, None]

    def minimum(self) -> Minimum:
        """Where every row stands."""
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
    """(columns, rows) in float64 on the CPU, in one transfer."""
    numbers: FloatArray = torch.stack(columns).double().cpu().numpy()
    return numbers


@dataclass
class Memory:
    """The last moves s and turns y of every row, in rings (rows, history, n)."""

    moves: Tensor
    turns: Tensor
    products: Tensor
    """(rows, history, history) ⟨s_i, y_j⟩ for i ≥ j, newest pair first; 1 on the diagonal where
    nothing is kept."""
    bends: Tensor
    """(rows, history, history) ⟨y_i, y_j⟩, newest first."""
    scale: Tensor
    """(rows,) ⟨s, y⟩ / ⟨y, y⟩ of the newest pair."""
    counts: NDArray[np.int64]
    """(rows,) pairs kept."""
    ends: NDArray[np.int64]
    """(rows,) where the next pair goes."""

    @classmethod
    def empty(cls, start: Tensor, history: int) -> Memory:
        """Nothing kept of rows that start at (rows, n)."""
        rows, size = start.shape
        pairs = start.new_zeros(rows, history, size)
        return cls(
            moves=pairs,
            turns=pairs.clone(),
            products=torch.eye(history).to(start).repeat(rows, 1, 1),
            bends=start.new_zeros(rows, history, history),
            scale=start.new_ones(rows),
            counts=np.zeros(rows, dtype=np.int64),
            ends=np.zeros(rows, dtype=np.int64),
        )

    def forget(self, rows: IntArray) -> None:
        """Keep nothing of these rows."""
        if not len(rows):
            return
        self.counts[rows] = self.ends[rows] = 0
        self.products[rows] = torch.eye(self.products.shape[1]).to(self.products)
        self.bends[rows] = 0

    def directions(self, rows: IntArray, moves: Tensor, turns: Tensor, gradients: Tensor) -> Tensor:
        """Keep a pair of each row whose curvature is positive, and give −H g; −g without pairs.

        Args:
            rows: (chosen,).
            moves: (chosen, n) the last step of each.
            turns: (chosen, n) by how much it changed the gradient.
            gradients: (chosen, n) where it led to.
        """
        good = self._keep(rows, moves, turns)
        used = int(self.counts[rows].max(initial=0))
        if not used:
            return -gradients
        kept = np.arange(used) < self.counts[rows, None]
        places = np.where(kept, (self.ends[rows, None] - 1 - np.arange(used)) % self._history, 0)
        order = torch.from_numpy(places).to(gradients.device)
        within = torch.from_numpy(kept).to(gradients)
        beside = torch.stack([turns, gradients], dim=1)
        of_moves, of_turns = (
            _inner(pairs, rows, used, beside).gather(2, order[:, None].expand(-1, 2, -1))
            * within[:, None]
            for pairs in (self.moves, self.turns)
        )
        self._note(rows[good], of_moves[_where(good), 0], of_turns[_where(good), 0])
        alpha, delta = self._solved(rows, -of_moves[:, 1], -of_turns[:, 1])
        return (
            -self._scale_of(rows) * gradients
            - _combined(self.turns, rows, order, alpha)
            + _combined(self.moves, rows, order, delta)
        )

    def _keep(self, rows: IntArray, moves: Tensor, turns: Tensor) -> NDArray[np.bool_]:
        """Put the pairs of positive curvature into the rings; (chosen,) which those are."""
        curvature, bend = (moves * turns).sum(dim=1), turns.square().sum(dim=1)
        flat = curvature <= torch.finfo(moves.dtype).eps * bend
        good: NDArray[np.bool_] = (~flat & (curvature > 0)).cpu().numpy()
        rows, chosen = rows[good], _where(good)
        if not len(rows):
            return good
        at = self.ends[rows]
        self.moves[rows, at], self.turns[rows, at] = moves[chosen], turns[chosen]
        self.scale[rows] = curvature[chosen] / bend[chosen]
        self.counts[rows] = np.minimum(self.counts[rows] + 1, self._history)
        self.ends[rows] = (at + 1) % self._history
        return good

    def _note(self, rows: IntArray, of_moves: Tensor, of_turns: Tensor) -> None:
        """Products of the newest turn with what is kept (chosen, used), newest first."""
        if not len(rows):
            return
        used = of_moves.shape[1]
        for matrices, column in ((self.products, of_moves), (self.bends, of_turns)):
            matrices[rows, 1:used, 1:used] = matrices[rows, : used - 1, : used - 1]
            matrices[rows, :used, 0] = column
        self.products[rows, 0, 1:used] = 0
        self.bends[rows, 0, :used] = of_turns

    def _solved(self, rows: IntArray, moves: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        """Weights γ α of the turns and δ of the moves, from S q and Y q for q = −g, newest first.

        With A the lower triangle of ⟨s_i, y_j⟩, the first loop of algorithm 7.4 solves A α = S q,
        the second one Aᵀ δ = diag(A) α − Y r for r = γ (q − Yᵀ α); the direction is r + Sᵀ δ.
        """
        used, scale = moves.shape[1], self._scale_of(rows)
        triangle = self.products[rows, :used, :used]
        alpha = torch.linalg.solve_triangular(triangle, moves[:, :, None], upper=False)
        bent = torch.bmm(self.bends[rows, :used, :used], alpha)[:, :, 0]
        right = triangle.diagonal(dim1=1, dim2=2) * alpha[:, :, 0] - scale * (turns - bent)
        delta = torch.linalg.solve_triangular(triangle.mT, right[:, :, None], upper=True)
        return scale * alpha[:, :, 0], delta[:, :, 0]

    def _scale_of(self, rows: IntArray) -> Tensor:
        """(chosen, 1) γ; 1 where nothing is kept."""
        bare = torch.from_numpy(self.counts[rows] == 0).to(self.scale.device)
        return self.scale[rows].masked_fill_(bare, 1)[:, None]

    @property
    def _history(self) -> int:
        return self.moves.shape[1]


def _where(mask: NDArray[np.bool_]) -> slice | Tensor:
    """The index of masked rows; no copy where they are all."""
    return slice(None) if mask.all() else torch.from_numpy(mask)


def _inner(pairs: Tensor, rows: IntArray, used: int, vectors: Tensor) -> Tensor:
    """(chosen, vectors, used) inner products of chosen rows' pairs with (chosen, vectors, n)."""
    if len(rows) == len(pairs):
        return torch.bmm(vectors, pairs[:, :used].mT)
    # one by one: together they would have to be copied first, which takes longer than the products
    numbered = zip(rows.tolist(), vectors, strict=True)
    return torch.stack([vector @ pairs[row, :used].mT for row, vector in numbered])


def _combined(pairs: Tensor, rows: IntArray, places: Tensor, weights: Tensor) -> Tensor:
    """(chosen, n) of chosen rows' pairs, by weights (chosen, used) of those at ``places``."""
    used = weights.shape[1]
    placed = torch.zeros_like(weights).scatter_add_(1, places, weights)[:, None]
    if len(rows) == len(pairs):
        return torch.bmm(placed, pairs[:, :used])[:, 0]
    numbered = zip(rows.tolist(), placed, strict=True)
    return torch.cat([weight @ pairs[row, :used] for row, weight in numbered])
