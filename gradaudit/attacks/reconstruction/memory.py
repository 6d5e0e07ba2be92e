"""What L-BFGS remembers of many problems, and the directions that follow from it.

J. Nocedal and S. J. Wright, "Numerical Optimization" (2nd ed.), algorithm 7.4, its two loops solved
as triangular systems, which needs inner products of the pairs alone (R. Byrd, J. Nocedal and R.
Schnabel, "Representations of quasi-Newton matrices", 1994): the pairs, by far the largest part, are
read twice an iteration.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


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
    counts: Tensor
    """(rows,) pairs kept."""
    ends: Tensor
    """(rows,) where the next pair goes."""

    @classmethod
    def empty(cls, start: Tensor, history: int) -> "Memory":
        """Nothing kept of rows that start at (rows, n)."""
        rows, size = start.shape
        pairs = start.new_zeros(rows, history, size)
        none = torch.zeros(rows, dtype=torch.int64, device=start.device)
        return cls(
            moves=pairs,
            turns=pairs.clone(),
            products=torch.eye(history).to(start).repeat(rows, 1, 1),
            bends=start.new_zeros(rows, history, history),
            scale=start.new_ones(rows),
            counts=none,
            ends=none.clone(),
        )

    def forget(self, rows: Tensor) -> None:
        """Keep nothing of these rows."""
        self.counts[rows] = 0
        self.ends[rows] = 0
        self.products[rows] = torch.eye(self.products.shape[1]).to(self.products)
        self.bends[rows] = 0

    def directions(self, rows: Tensor, moves: Tensor, turns: Tensor, gradients: Tensor) -> Tensor:
        """Keep a pair of each row whose curvature is positive, and give −H g; −g without pairs.

        Args:
            rows: (chosen,) ascending.
            moves: (chosen, n) the last step of each.
            turns: (chosen, n) by how much it changed the gradient.
            gradients: (chosen, n) where it led to.
        """
        good = self._keep(rows, moves, turns)
        used = int(self.counts[rows].max()) if len(rows) else 0
        if not used:
            return -gradients
        beside = torch.stack([turns, gradients], dim=1)
        of_moves, of_turns = (
            _inner(pairs, rows, used, beside).gather(2, self._places(rows, used, 2))
            for pairs in (self.moves, self.turns)
        )
        self._note(rows[good], of_moves[good, 0], of_turns[good, 0])
        ages = torch.arange(used, device=rows.device)
        kept = (ages < self.counts[rows, None]).to(gradients.dtype)
        return self._solved(rows, gradients, -of_moves[:, 1] * kept, -of_turns[:, 1] * kept)

    def _keep(self, rows: Tensor, moves: Tensor, turns: Tensor) -> Tensor:
        """Put the pairs of positive curvature into the rings; (chosen,) which those are."""
        curvature = (moves * turns).sum(dim=1)
        bend = turns.square().sum(dim=1)
        good = (curvature > torch.finfo(moves.dtype).eps * bend) & (curvature > 0)
        rows = rows[good]
        at, history = self.ends[rows], self.moves.shape[1]
        self.moves[rows, at], self.turns[rows, at] = moves[good], turns[good]
        self.scale[rows] = curvature[good] / bend[good]
        self.counts[rows] = (self.counts[rows] + 1).clamp_max(history)
        self.ends[rows] = (at + 1) % history
        return good

    def _note(self, rows: Tensor, of_moves: Tensor, of_turns: Tensor) -> None:
        """Products of the newest turn with what is kept (chosen, used), newest first."""
        used = of_moves.shape[1]
        for matrices, column in ((self.products, of_moves), (self.bends, of_turns)):
            matrices[rows, 1:used, 1:used] = matrices[rows, : used - 1, : used - 1]
            matrices[rows, :used, 0] = column
        kept = torch.arange(used, device=rows.device) < self.counts[rows, None]
        self.products[rows, :used, 0] *= kept
        self.products[rows, 0, 1:used] = 0
        self.bends[rows, :used, 0] *= kept
        self.bends[rows, 0, :used] = self.bends[rows, :used, 0]

    def _solved(self, rows: Tensor, gradients: Tensor, moves: Tensor, turns: Tensor) -> Tensor:
        """−H g from S q and Y q (chosen, used) for q = −g, newest first.

        With A the lower triangle of ⟨s_i, y_j⟩, the first loop of algorithm 7.4 solves A α = S q,
        the second one Aᵀ δ = diag(A) α − Y r for r = γ (q − Yᵀ α); the direction is r + Sᵀ δ.
        """
        used = moves.shape[1]
        triangle = self.products[rows, :used, :used]
        scale = torch.where(self.counts[rows] > 0, self.scale[rows], 1)[:, None]
        alpha = torch.linalg.solve_triangular(triangle, moves[:, :, None], upper=False)
        bent = torch.bmm(self.bends[rows, :used, :used], alpha)[:, :, 0]
        right = triangle.diagonal(dim1=1, dim2=2) * alpha[:, :, 0] - scale * (turns - bent)
        delta = torch.linalg.solve_triangular(triangle.mT, right[:, :, None], upper=True)
        places = self._places(rows, used, 1)[:, 0]
        return (
            -scale * gradients
            - _combined(self.turns, rows, places, scale * alpha[:, :, 0])
            + _combined(self.moves, rows, places, delta[:, :, 0])
        )

    def _places(self, rows: Tensor, used: int, vectors: int) -> Tensor:
        """(chosen, vectors, used) where in the rings pairs are, newest first; 0 where none is."""
        ages = torch.arange(used, device=rows.device)
        places = (self.ends[rows, None] - 1 - ages) % self.moves.shape[1]
        places = torch.where(ages < self.counts[rows, None], places, 0)
        return places[:, None].expand(-1, vectors, -1)


def _inner(pairs: Tensor, rows: Tensor, used: int, vectors: Tensor) -> Tensor:
    """(chosen, vectors, used) inner products of chosen rows' pairs with (chosen, vectors, n)."""
    if len(rows) == len(pairs):
        return torch.bmm(vectors, pairs[:, :used].mT)
    # one by one: together they would have to be copied first, which takes longer than the products
    each = zip(rows.tolist(), vectors, strict=True)
    return torch.stack([vector @ pairs[row, :used].mT for row, vector in each])


def _combined(pairs: Tensor, rows: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """(chosen, n) of chosen rows' pairs, by weights (chosen, used) of those at ``places``."""
    used = weights.shape[1]
    placed = torch.zeros_like(weights).scatter_add_(1, places, weights)[:, None]
    if len(rows) == len(pairs):
        return torch.bmm(placed, pairs[:, :used])[:, 0]
    each = zip(rows.tolist(), placed, strict=True)
    return torch.cat([weight @ pairs[row, :used] for row, weight in each])
