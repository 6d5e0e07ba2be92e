"""The limited memory of L-BFGS: last moves and turns of every row, and directions from them.

The two loops of J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), algorithm 7.4, are
solved as triangular systems, which needs inner products of the pairs alone (R. Byrd, J. Nocedal and
R. Schnabel, "Representations of quasi-Newton matrices", 1994): the pairs, by far the largest part,
are read twice an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int64]


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
    counts: IntArray
    """(rows,) pairs kept."""
    ends: IntArray
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
