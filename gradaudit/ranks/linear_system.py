"""The linear system of a convolution, U x = [W; ∇_Z J] x (Chen & Campbell 2021, eq. 4).

W maps an input to the outputs, ∇_Z J to the gradient of the weight. Rank does not depend on the
length of rows, rounding does: ranks are taken of orthonormal bases of the filters and of the output
gradients, which have the same row space.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, vstack
from torch import Tensor

from gradaudit.ranks.observe import Geometry

IntArray: TypeAlias = NDArray[np.int64]
EPSILON = torch.finfo(torch.float64).eps
NULL = 1e-10
"""Singular values of U below this share of ‖im2col‖₂ count as zero."""
MOST_ELEMENTS = 40_000_000
"""Elements of a dense matrix (320 MB) above which it is not formed."""


def weights_matrix(filters: Tensor, geometry: Geometry, groups: int = 1) -> csr_array:
    """Form W, (filter · position, channel · position), of filters (filters, channels, taps)."""
    out, channel, at, tap, columns = _products(len(filters), geometry, groups)
    shape = len(filters) * geometry.positions, groups * geometry.channels * geometry.size
    entries = filters.cpu().numpy()[out, channel, tap]
    return csr_array(coo_array((entries, (out * geometry.positions + at, columns)), shape=shape))


def gradients_matrix(deltas: Tensor, geometry: Geometry, groups: int = 1) -> csr_array:
    """Form ∇_Z J, (filter · channel · tap, channel · position), of deltas (filters, positions)."""
    out, channel, at, tap, columns = _products(len(deltas), geometry, groups)
    rows = (out * geometry.channels + channel) * geometry.taps + tap
    height = len(deltas) * geometry.channels * geometry.taps
    shape = height, groups * geometry.channels * geometry.size
    return csr_array(coo_array((deltas.cpu().numpy()[out, at], (rows, columns)), shape=shape))


def _products(filters: int, geometry: Geometry, groups: int) -> tuple[IntArray, ...]:
    """Index every product: filter, its channel, output position, tap, input; padding left out."""
    if not filters:
        return (np.zeros(0, dtype=np.int64),) * 5
    sources = geometry.sources.cpu().numpy()
    at, tap = np.nonzero(sources < geometry.size)
    out, channel, read = (i.ravel() for i in np.indices((filters, geometry.channels, len(at))))
    first = out // (filters // groups) * geometry.channels
    columns = (first + channel) * geometry.size + sources[at, tap][read]
    return out, channel, at[read], tap[read], columns


@dataclass(frozen=True)
class SpectralGap:
    """A numerical rank and the singular values on both sides of the line that decides it.

    ``smallest`` is the smallest that counts (1 at rank 0), ``largest_dropped`` the largest that
    does not (0 where there is none), and ``tolerance`` the line, all relative.
    """

    rank: int
    smallest: float
    largest_dropped: float
    tolerance: float

    @classmethod
    def at(cls, values: Tensor, tolerance: float) -> Self:
        """Count relative singular values in descending order."""
        rank = int((values > tolerance).sum())
        return cls(
            rank=rank,
            smallest=float(values[rank - 1]) if rank else 1.0,
            largest_dropped=float(values[rank]) if rank < len(values) else 0.0,
            tolerance=tolerance,
        )


_NOTHING = SpectralGap(rank=0, smallest=1.0, largest_dropped=0.0, tolerance=0.0)


@dataclass(frozen=True)
class RowBasis:
    """The row space of a matrix: (rank, columns) orthonormal rows, and what decided the rank."""

    rows: Tensor
    gap: SpectralGap

    @property
    def rank(self) -> int:
        """Dimension of the row space."""
        return self.gap.rank


def row_basis(matrix: Tensor) -> RowBasis:
    """Compute the row space of a float64 matrix whose rows are first brought to length 1.

    A channel with a small gradient counts as much as one with a large gradient. Rows below the
    rounding error of the longest row are zero.
    """
    tolerance = max(matrix.shape) * EPSILON
    if not matrix.any():
        return RowBasis(matrix[:0], replace(_NOTHING, tolerance=tolerance))
    lengths = matrix.norm(dim=1, keepdim=True)
    kept = (lengths > tolerance * lengths.max()).squeeze(1)
    matrix = matrix[kept] / lengths[kept]
    if matrix.shape[0] > matrix.shape[1]:
        _, values, basis = torch.linalg.svd(torch.linalg.qr(matrix, mode="r").R)
    else:
        q, r = torch.linalg.qr(matrix.T)
        _, values, basis = torch.linalg.svd(r.T)
        basis = basis @ q.T
    gap = SpectralGap.at(values / values[0], tolerance)
    return RowBasis(basis[: gap.rank].contiguous(), gap)


def numerical_rank(matrix: Tensor) -> int:
    """Compute the rank of a matrix whose rows are already of like length."""
    if 0 in matrix.shape:
        return 0
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    if is_definite(wide @ wide.T):
        return len(wide)
    values = torch.linalg.svdvals(wide)
    return int((values > max(matrix.shape) * EPSILON * values[0]).sum())


def is_definite(gram: Tensor) -> bool:
    """Certify that a symmetric matrix is positive definite, rounding included.

    A Cholesky factor of A − (n+1) ε tr(A) I exists (Higham 2002, theorem 10.7).
    """
    shifted = gram.clone()
    shifted.diagonal().sub_(_rounding(gram))
    return int(torch.linalg.cholesky_ex(shifted).info) == 0


def _rounding(gram: Tensor) -> Tensor:
    return (len(gram) + 1) * EPSILON * gram.trace()


@dataclass(frozen=True)
class ConvolutionSystem:
    """U of one group of a convolution, by bases of its filters and output gradients.

    ``filters`` is the basis of the filters' row space, over (tap, input channel), ``deltas`` that
    of the output gradients', over output positions.
    """

    geometry: Geometry
    filters: RowBasis
    deltas: RowBasis

    @property
    def columns(self) -> int:
        """Inputs of the group, touched or not."""
        return self.geometry.size * self.geometry.channels

    @property
    def width(self) -> int:
        """Elements of one filter."""
        return self.geometry.taps * self.geometry.channels

    @property
    def height(self) -> int:
        """Rows of U, those that are zero or dependent included."""
        return self.geometry.positions * self.filters.rank + self.width * self.deltas.rank

    @cached_property
    def live(self) -> Tensor:
        """Which elements of a filter ever read an input, (width,)."""
        return self.geometry.live.repeat_interleave(self.geometry.channels)

    @property
    def dense_flops(self) -> float:
        """About the floating-point operations of ``singular_values``."""
        low, high = sorted((self.columns, self.height))
        return 2.0 * high * low**2 + 6.0 * low**3

    def matrix(self) -> csr_array:
        """Form U, (height, columns), sparse."""
        by_tap = self.filters.rows.view(-1, self.geometry.taps, self.geometry.channels)
        weights = weights_matrix(by_tap.transpose(1, 2), self.geometry)
        gradients = gradients_matrix(self.deltas.rows, self.geometry)
        return csr_array(vstack([weights, gradients], format="csr"))

    def singular_values(self) -> SpectralGap:
        """Compute the numerical rank of U, formed, by its singular values over ‖im2col‖₂."""
        matrix = torch.from_numpy(self.matrix().toarray()).to(self.geometry.sources.device)
        if 0 in matrix.shape:
            return SpectralGap.at(torch.zeros(0), NULL)
        return SpectralGap.at(torch.linalg.svdvals(matrix) / self.geometry.scale, NULL)

    @property
    def side(self) -> int:
        """The smaller side of U, without inputs that are not read."""
        return min(self.geometry.touched, self.height)

    def gram_flops(self, bound: int) -> float:
        """About the floating-point operations of UᵀU, and of its factor or eigenvalues."""
        products = 20.0 * self.geometry.positions * self.width
        by_rows = self.height < self.geometry.touched
        form = products * (self.filters.rank + self.deltas.rank if by_rows else self.width)
        return form + (self.side**3 / 3 if bound == self.side else self.eigen_flops)

    @property
    def eigen_flops(self) -> float:
        """About the floating-point operations of the eigenvalues of UᵀU."""
        return 4.0 * self.side**3

    def least_rank(self, bound: int, flops: float = math.inf) -> int:
        """Bound rank U from below by the eigenvalues of UᵀU above rounding; ``bound`` is above.

        Where UᵀU has no Cholesky factor and eigenvalues cost more than ``flops``, by zero.
        """
        if self.height < self.geometry.touched:
            matrix = self.matrix()
            gram = torch.from_numpy((matrix @ matrix.T).toarray()).to(self.filters.rows.device)
        else:
            gram = self.gram()
        if bound == len(gram) and is_definite(gram):
            return bound
        if self.eigen_flops > flops:
            return 0
        return int((torch.linalg.eigvalsh(gram) > _rounding(gram)).sum())

    def gram(self) -> Tensor:
        """Form UᵀU on the inputs that are read, (touched, touched), without U."""
        geometry, rows = self.geometry, self.filters.rows
        taps, channels, size = geometry.taps, geometry.channels, geometry.size
        of_taps = (rows.T @ rows).view(taps, channels, taps, channels).transpose(1, 2).contiguous()
        gram = rows.new_zeros(size + 1, size + 1, channels, channels)
        for by_tap, at in zip(of_taps, geometry.sources.T, strict=True):
            where = at[:, None].expand_as(geometry.sources), geometry.sources
            products = by_tap.expand(geometry.positions, -1, -1, -1)
            gram.index_put_(where, products, accumulate=True)
        read = torch.nonzero(geometry.reads).flatten()
        gram = gram[read[:, None], read]
        gram.diagonal(dim1=2, dim2=3).add_(self.channel_gram()[:, :, None])
        return gram.transpose(1, 2).reshape(geometry.touched, geometry.touched)

    def channel_gram(self) -> Tensor:
        """Form ∇_Z Jᵀ ∇_Z J on the positions of one channel that are read, (read, read)."""
        geometry, rows = self.geometry, self.deltas.rows
        placed = rows.new_zeros(geometry.taps, geometry.size + 1, len(rows))
        for tap, at in zip(placed, geometry.sources.T, strict=True):
            tap.index_add_(0, at, rows.T)
        equations = placed[:, :-1].transpose(0, 1).flatten(1)[geometry.reads > 0]
        return equations @ equations.T
