"""Orthonormal row bases, with the numerical rank and the gap that decides it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Gap:
    """A numerical rank and the singular values on both sides of the line that decides it.

    Attributes:
        rank: how many lie above the line.
        smallest: the smallest that counts, relative (1 at rank 0).
        largest_dropped: the largest that does not, relative (0 where there is none).
        tolerance: the line, relative.
    """

    rank: int
    smallest: float
    largest_dropped: float
    tolerance: float

    @classmethod
    def at(cls, values: Tensor, tolerance: float) -> Gap:
        """From relative singular values in descending order."""
        rank = int((values > tolerance).sum())
        return cls(
            rank=rank,
            smallest=float(values[rank - 1]) if rank else 1.0,
            largest_dropped=float(values[rank]) if rank < len(values) else 0.0,
            tolerance=tolerance,
        )


@dataclass(frozen=True)
class RowBasis:
    """The row space of a matrix: (rank, columns) orthonormal rows, and what decided the rank."""

    rows: Tensor
    gap: Gap

    @property
    def rank(self) -> int:
        """Dimension of the row space."""
        return len(self.rows)


def row_basis(matrix: Tensor) -> RowBasis:
    """The row space of a (rows, columns) float64 matrix whose rows are first brought to length 1.

    Rank does not depend on the length of the rows, rounding does: a channel with a small gradient
    counts as much as one with a large gradient. Rows below the rounding error of the longest row
    are zero.
    """
    tolerance = max(matrix.shape) * EPSILON
    if not matrix.any():
        return RowBasis(matrix[:0], Gap(0, 1.0, 0.0, tolerance))
    lengths = matrix.norm(dim=1, keepdim=True)
    kept = (lengths > tolerance * lengths.max()).squeeze(1)
    return _of_unit_rows(matrix[kept] / lengths[kept], tolerance)


def _of_unit_rows(matrix: Tensor, tolerance: float) -> RowBasis:
    rows, columns = matrix.shape
    if rows > columns:
        _, values, basis = torch.linalg.svd(torch.linalg.qr(matrix, mode="r").R)
    else:
        q, r = torch.linalg.qr(matrix.T)
        _, values, basis = torch.linalg.svd(r.T)
        basis = basis @ q.T
    gap = Gap.at(values / values[0], tolerance)
    return RowBasis(basis[: gap.rank].contiguous(), gap)


def numerical_rank(matrix: Tensor) -> int:
    """Rank of a matrix whose rows are already of like length, by its singular values.

    The Gram matrix of the smaller side decides where it is far from singular (its condition number
    is the square of the matrix's), the matrix itself everywhere else.
    """
    if 0 in matrix.shape:
        return 0
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    gram = torch.linalg.eigvalsh(wide @ wide.T)
    if gram[0] > 1e-8 * gram[-1] > 0:
        return len(wide)
    values = torch.linalg.svdvals(wide)
    return int((values > max(matrix.shape) * EPSILON * values[0]).sum())
