"""The limited memory of L-BFGS: last moves and turns of every row, and directions from them.

The two loops of J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), algorithm 7.4, are
solved as triangular systems, which needs inner products of the pairs alone (R. Byrd, J. Nocedal and
R. Schnabel, "Representations of quasi-Newton matrices", 1994).
"""

from copy import copy

import torch
from torch import Tensor


class Curvature:
    """The last moves s and turns y of every row, in rings.

    Attributes:
        counts: (rows,) pairs that were kept since the last ``forget``.
    """

    def __init__(self, start: Tensor, history: int) -> None:
        """The empty memory of rows that start at (rows, n)."""
        rows, size = start.shape
        self.counts = torch.zeros(rows, dtype=torch.int64, device=start.device)
        self._moves, self._turns = (start.new_zeros(rows, history, size) for _ in range(2))
        self._products, self._bends = (start.new_zeros(rows, history, history) for _ in range(2))
        self._scale, self._rows = start.new_ones(rows), torch.arange(rows, device=start.device)
        self._most = 0
        """Places of the rings that may hold a pair."""

    def rows(self, at: Tensor) -> "Curvature":
        """The memory of some rows alone."""
        memory = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(memory, name, value[at])
        memory._rows = self._rows[: len(at)]
        return memory

    def forget(self, which: Tensor) -> None:
        """Forget the pairs of some rows, (rows,)."""
        self.counts = self.counts.masked_fill(which, 0)

    def keep(self, which: Tensor, moves: Tensor, turns: Tensor) -> None:
        """Keep a pair (rows, n) of each of some rows, if its curvature is positive."""
        curvature, bend = (moves * turns).sum(dim=1), turns.square().sum(dim=1)
        good = which & (curvature > torch.finfo(moves.dtype).eps * bend) & (curvature > 0)
        at, column = self.counts % self._history, good[:, None]
        for ring, pairs in ((self._moves, moves), (self._turns, turns)):
            ring[self._rows, at] = torch.where(column, pairs, ring[self._rows, at])
        self._most = min(self._most + 1, self._history)
        of_moves, of_turns = self._inner(turns)
        places = (self._products, of_moves), (self._bends, of_turns), (self._bends.mT, of_turns)
        for matrix, products in places:
            before = matrix[self._rows, : self._most, at]
            matrix[self._rows, : self._most, at] = torch.where(column, products, before)
        self.counts = self.counts + good
        self._scale = torch.where(good, curvature / bend, self._scale)

    def directions(self, gradients: Tensor) -> Tensor:
        """Return −H g of every row, (rows, n); −g without pairs.

        With A the lower triangle of ⟨s_i, y_j⟩, newest pair first, the first loop of algorithm 7.4
        solves A α = S q for q = −g, the second one Aᵀ δ = diag(A) α − Y r for r = γ (q − Yᵀ α); the
        direction is r + Sᵀ δ.
        """
        counts, newest = self.counts[:, None], torch.arange(self._most, device=gradients.device)
        order, free = (counts - 1 - newest) % self._history, newest >= counts
        order = order.masked_fill(free, 0)
        scale = self._scale[:, None].masked_fill(counts == 0, 1)
        of_moves, of_turns = (
            -part.gather(1, order).masked_fill(free, 0) for part in self._inner(gradients)
        )
        at = self._rows[:, None, None], order[:, :, None], order[:, None]
        alone = free[:, :, None] | free[:, None]
        lone = torch.eye(self._most, dtype=gradients.dtype, device=gradients.device)
        triangle = torch.where(alone, lone, self._products[at].tril())
        alpha = torch.linalg.solve_triangular(triangle, of_moves[:, :, None], upper=False)
        bent = (self._bends[at].masked_fill(alone, 0) @ alpha)[:, :, 0]
        right = triangle.diagonal(dim1=1, dim2=2) * alpha[:, :, 0] - scale * (of_turns - bent)
        right = right.masked_fill(free, 0)[:, :, None]
        delta = torch.linalg.solve_triangular(triangle.mT, right, upper=True)
        none = torch.zeros_like(of_moves)
        by_turns = none.scatter_add(1, order, scale * alpha[:, :, 0])[:, None]
        by_moves = none.scatter_add(1, order, delta[:, :, 0])[:, None]
        moved = by_moves @ self._moves[:, : self._most] - by_turns @ self._turns[:, : self._most]
        return moved[:, 0] - scale * gradients

    def _inner(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply all pairs with a vector (rows, n) of each row."""
        rings, column = (self._moves, self._turns), vectors[:, :, None]
        of_moves, of_turns = ((ring[:, : self._most] @ column)[:, :, 0] for ring in rings)
        return of_moves, of_turns

    @property
    def _history(self) -> int:
        return self._moves.shape[1]
