"""The limited memory of L-BFGS: last moves and turns of every row, and directions from them.

The two loops of J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), algorithm 7.4, are
solved as triangular systems, which needs inner products of the pairs alone (R. Byrd, J. Nocedal and
R. Schnabel, "Representations of quasi-Newton matrices", 1994): the pairs, by far the largest part,
are read twice an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int64]


@dataclass
class Memory:
    """The last moves s and turns y of every row, in rings (rows, history + 1, n).

    The CPU never reads what is kept, and so never waits for a device.
    """

    moves: Tensor
    """The place that the next pair goes to is free: a pair that is not kept is zero there."""
    turns: Tensor
    products: Tensor
    """(rows, history, history) ⟨s_i, y_j⟩ for i ≥ j, newest pair first; nothing is meant by what
    stands beyond the pairs that are kept, but that the diagonal is not zero."""
    bends: Tensor
    """(rows, history, history) ⟨y_i, y_j⟩, newest first."""
    scale: Tensor
    """(rows,) ⟨s, y⟩ / ⟨y, y⟩ of the newest pair."""
    counts: Tensor
    """(rows,) pairs kept."""
    ends: Tensor
    """(rows,) where the next pair goes."""
    rows: Tensor
    """(rows,) their numbers."""
    most: IntArray
    """(rows,) pairs that may be kept, as far as the CPU knows."""

    @classmethod
    def empty(cls, start: Tensor, history: int) -> Memory:
        """The empty memory of rows that start at (rows, n)."""
        rows, size = start.shape
        pairs, count = start.new_zeros(rows, history + 1, size), start.new_zeros(rows).long()
        return cls(
            moves=pairs,
            turns=pairs.clone(),
            products=torch.eye(history).to(start).repeat(rows, 1, 1),
            bends=start.new_zeros(rows, history, history),
            scale=start.new_ones(rows),
            counts=count,
            ends=count.clone(),
            rows=torch.arange(rows, device=start.device),
            most=np.zeros(rows, dtype=np.int64),
        )

    def double(self) -> Memory:
        """Convert the memory to double precision."""
        real = ("moves", "turns", "products", "bends", "scale")
        return replace(self, **{name: getattr(self, name).double() for name in real})

    def forget(self, rows: IntArray, which: Tensor | None = None) -> None:
        """Forget all moves of these rows, or of those of them that are chosen (chosen,)."""
        at = some_of(self.counts, rows)
        if which is None:
            self.counts[at] = self.ends[at] = self.most[rows] = 0
        else:
            self.counts[at] = self.counts[at].masked_fill(which, 0)
            self.ends[at] = self.ends[at].masked_fill(which, 0)

    def directions(self, rows: IntArray, moves: Tensor, turns: Tensor, gradients: Tensor) -> Tensor:
        """Keep a pair of each row whose curvature is positive, and give −H g; −g without pairs.

        Args:
            rows: (chosen,).
            moves: (chosen, n) the last step of each.
            turns: (chosen, n) by how much it changed the gradient.
            gradients: (chosen, n) where it led to.
        """
        at = some_of(self.counts, rows)
        good = self._keep(at, moves, turns)
        self.most[rows] += 1
        most = int(self.most[rows].max())
        used, filled = min(most, self._history), min(most, self._history + 1)
        newest = torch.arange(used, device=gradients.device)
        free = newest >= self.counts[at, None]
        order = ((self.ends[at, None] - 1 - newest) % (self._history + 1)).masked_fill_(free, 0)
        beside = torch.stack([turns, gradients], dim=1)
        of_moves, of_turns = (
            _inner(pairs, rows, filled, beside)
            .gather(2, order[:, None].expand(-1, 2, -1))
            .masked_fill_(free[:, None], 0)
            for pairs in (self.moves, self.turns)
        )
        self._note(at, good, of_moves[:, 0], of_turns[:, 0])
        alpha, delta = self._solved(at, free, -of_moves[:, 1], -of_turns[:, 1])
        return (
            -self._scale_of(at) * gradients
            - _combined(self.turns, rows, filled, order, alpha)
            + _combined(self.moves, rows, filled, order, delta)
        )

    def _keep(self, at: slice | Tensor, moves: Tensor, turns: Tensor) -> Tensor:
        """Put the pairs of positive curvature into the rings; (chosen,) which those are."""
        curvature, bend = (moves * turns).sum(dim=1), turns.square().sum(dim=1)
        flat = curvature <= torch.finfo(moves.dtype).eps * bend
        good, end = ~flat & (curvature > 0), self.ends[at]
        for ring, pairs in ((self.moves, moves), (self.turns, turns)):
            ring[self.rows[at], end] = pairs.where(good[:, None], 0)
        self.scale[at] = torch.where(good, curvature / bend, self.scale[at])
        self.counts[at] = (self.counts[at] + good).clamp_(max=self._history)
        self.ends[at] = (end + good) % (self._history + 1)
        return good

    def _note(self, at: slice | Tensor, good: Tensor, of_moves: Tensor, of_turns: Tensor) -> None:
        """Products of the newest turn with what is kept (chosen, used), newest first."""
        used, row = of_moves.shape[1], good[:, None]
        for matrices, column in ((self.products, of_moves), (self.bends, of_turns)):
            older, newer = matrices[at, : used - 1, : used - 1], matrices[at, 1:used, 1:used]
            matrices[at, 1:used, 1:used] = torch.where(row[:, None], older, newer)
            matrices[at, :used, 0] = torch.where(row, column, matrices[at, :used, 0])
        self.products[at, 0, 1:used] = self.products[at, 0, 1:used].masked_fill(row, 0)
        self.bends[at, 0, :used] = torch.where(row, of_turns, self.bends[at, 0, :used])

    def _solved(
        self, at: slice | Tensor, free: Tensor, moves: Tensor, turns: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights γ α of the turns and δ of the moves, from S q and Y q for q = −g, newest first.

        With A the lower triangle of ⟨s_i, y_j⟩, the first loop of algorithm 7.4 solves A α = S q,
        the second one Aᵀ δ = diag(A) α − Y r for r = γ (q − Yᵀ α); the direction is r + Sᵀ δ. What
        is kept comes before what is free in A, so that zeros there keep the rest as it is.
        """
        used, scale = moves.shape[1], self._scale_of(at)
        triangle = self.products[at, :used, :used]
        alpha = torch.linalg.solve_triangular(triangle, moves[:, :, None], upper=False)
        alpha = alpha.masked_fill(free[:, :, None], 0)
        bent = torch.bmm(self.bends[at, :used, :used], alpha)[:, :, 0]
        right = triangle.diagonal(dim1=1, dim2=2) * alpha[:, :, 0] - scale * (turns - bent)
        right = right.masked_fill(free, 0)
        delta = torch.linalg.solve_triangular(triangle.mT, right[:, :, None], upper=True)
        return scale * alpha[:, :, 0], delta[:, :, 0]

    def _scale_of(self, at: slice | Tensor) -> Tensor:
        """Compute the scale γ (chosen, 1); 1 where no pair is kept."""
        return self.scale[at].masked_fill(self.counts[at] == 0, 1)[:, None]

    @property
    def _history(self) -> int:
        return self.products.shape[1]


def some_of(tensor: Tensor, rows: IntArray) -> slice | Tensor:
    """The index of some of a tensor's rows, in its place; no copy where they are all."""
    if len(rows) == len(tensor):
        return slice(None)
    return torch.from_numpy(rows).to(tensor.device, non_blocking=True)


def _inner(pairs: Tensor, rows: IntArray, used: int, vectors: Tensor) -> Tensor:
    """Multiply chosen rows' pairs with (chosen, vectors, n): (chosen, vectors, used)."""
    if len(rows) == len(pairs):
        return torch.bmm(vectors, pairs[:, :used].mT)
    # one by one: together they would have to be copied first, which takes longer than the products
    numbered = zip(rows.tolist(), vectors, strict=True)
    return torch.stack([vector @ pairs[row, :used].mT for row, vector in numbered])


def _combined(pairs: Tensor, rows: IntArray, used: int, places: Tensor, weights: Tensor) -> Tensor:
    """Sum chosen rows' pairs at ``places`` with weights (chosen, pairs): (chosen, n)."""
    placed = weights.new_zeros(len(weights), used).scatter_add_(1, places, weights)[:, None]
    if len(rows) == len(pairs):
        return torch.bmm(placed, pairs[:, :used])[:, 0]
    numbered = zip(rows.tolist(), placed, strict=True)
    return torch.cat([weight @ pairs[row, :used] for row, weight in numbered])
