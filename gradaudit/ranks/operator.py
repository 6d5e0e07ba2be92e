"""Û, a map with the row space of U and none of its trivial relations, applied without forming it.

With P(x) = im2col(x), taps × output positions, U x = [Wf P(x); ∇_Z J P(x)ᵀ], so that the rows of U
span the fold of row(Wf) ⊗ R^positions + R^taps ⊗ row(∇_Z J). With orthonormal bases Q_w and Q_d of
these row spaces and the projection Π onto what Q_w leaves of the taps,

    Û x = [Q_w P(x); Π P(x) Q_dᵀ]

has the same row space, whatever filters and channels are zero, duplicate or dependent. The rows
before the fold are orthonormal (``RowBasis``), hence ‖Û‖ ≤ ‖P‖ (``Geometry.scale``).

Equations on a convolution's input from output gradients alone, channel by channel.

The gradient of a weight is ∇_Z J P(x)ᵀ: for an output channel and a tap, the same inner product
with every input channel, that with the channel's output gradient put where the tap reads. These
vectors span S, a part of the space R^size of one input channel; the rows of U span S ⊗ R^channels
and those of W beside it, so that

    rank U = channels · dim S + rank of W on S^⊥ ⊗ R^channels.

Where S is all that is read, W adds nothing, and elsewhere W has less to settle: with S eliminated,
conjugate gradients need a third of the iterations (VGG16's 256 channels at 56×56).
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from gradaudit.ranks.observe import Geometry

EPSILON = torch.finfo(torch.float64).eps

NULL = 1e-10
"""Singular values of Û below this share of ‖im2col‖₂ count as zero."""
MOST_ELEMENTS = 40_000_000
"""Elements of Û (320 MB) above which it is never formed."""
_PATCH_ELEMENTS = 1 << 19
"""Elements of im2col(x) at a time: 4 MB stay in the cache between its two uses."""
_FLOPS_OF_CALLS = 4_000_000
_CLEAR = 1e-6
"""S is eliminated if its basis is exact: no singular value between rounding and this."""


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
        """The count by relative singular values in descending order."""
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
    """The row space of a (rows, columns) float64 matrix whose rows are first brought to length 1.

    Rank does not depend on the length of the rows, rounding does: a channel with a small gradient
    counts as much as one with a large gradient. Rows below the rounding error of the longest row
    are zero.
    """
    tolerance = max(matrix.shape) * EPSILON
    if not matrix.any():
        return RowBasis(matrix[:0], replace(_NOTHING, tolerance=tolerance))
    lengths = matrix.norm(dim=1, keepdim=True)
    kept = (lengths > tolerance * lengths.max()).squeeze(1)
    return row_space(matrix[kept] / lengths[kept], tolerance)


def row_space(matrix: Tensor, tolerance: float) -> RowBasis:
    """The row space of a (rows, columns) matrix, of singular values over the largest."""
    if matrix.shape[0] > matrix.shape[1]:
        _, values, basis = torch.linalg.svd(torch.linalg.qr(matrix, mode="r").R)
    else:
        q, r = torch.linalg.qr(matrix.T)
        _, values, basis = torch.linalg.svd(r.T)
        basis = basis @ q.T
    gap = SpectralGap.at(values / values[0], tolerance)
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


@dataclass(frozen=True)
class ReducedU:
    """Û of one group of a convolution.

    Inputs are vectors of ``columns`` elements (spatial position, then channel), outputs vectors of
    ``height`` elements: Q_w P(x) by (output position, filter), then Π P(x) Q_dᵀ by (channel, tap).
    ``filters`` is the basis of the filters' row space, over (tap, input channel), ``deltas`` that
    of the output gradients', over output positions.
    """

    geometry: Geometry
    filters: RowBasis
    deltas: RowBasis

    @property
    def filters_alone(self) -> Self:
        """Q_w P(x) without what the output gradients add."""
        return replace(self, deltas=RowBasis(self.deltas.rows[:0], _NOTHING))

    @property
    def columns(self) -> int:
        """Inputs of the group, touched or not."""
        return self.geometry.size * self.geometry.channels

    @property
    def height(self) -> int:
        """Rows of Û, those that are zero or dependent by padding included."""
        return self._split + self.deltas.rank * self.width

    @cached_property
    def width(self) -> int:
        """Elements of one filter."""
        return self.geometry.taps * self.geometry.channels

    @property
    def flops(self) -> int:
        """Floating-point operations of one application, and those that its calls cost in time."""
        positions, width = self.geometry.positions, self.width
        both = self.filters.rank + self.deltas.rank
        project = 4 * width * self.filters.rank * self.deltas.rank
        return 2 * positions * width * (both + 5) + project + _FLOPS_OF_CALLS

    @property
    def elements(self) -> int:
        """Elements of Û as a dense matrix."""
        return self.columns * self.height

    @property
    def dense_flops(self) -> float:
        """About the floating-point operations of ``singular_values``; infinite where Û never is."""
        if self.elements > MOST_ELEMENTS:
            return math.inf
        low, high = sorted((self.columns, self.height))
        return 6.0 * high * low**2 + low * self.flops

    def singular_values(self) -> SpectralGap:
        """The numerical rank of Û, formed, by its singular values, over ‖im2col‖₂."""
        if not self.elements:
            return SpectralGap.at(torch.zeros(0), NULL)
        wide = self.columns > self.height
        size, device = min(self.columns, self.height), self.geometry.sources.device
        unit = torch.eye(size, dtype=torch.float64, device=device)
        matrix = self.apply_transposed(unit) if wide else self.apply(unit)
        return SpectralGap.at(torch.linalg.svdvals(matrix) / self.geometry.scale, NULL)

    @cached_property
    def _split(self) -> int:
        return self.geometry.positions * self.filters.rank

    @cached_property
    def live(self) -> Tensor:
        """Which elements of a filter ever read an input, (width,)."""
        return self.geometry.live.repeat_interleave(self.geometry.channels)

    @cached_property
    def _chunks(self) -> list[tuple[slice, Tensor]]:
        """Some output positions at a time, and the inputs that they read."""
        step = max(1, _PATCH_ELEMENTS // self.width)
        starts = range(0, self.geometry.positions, step)
        chunks = [slice(start, start + step) for start in starts]
        return [(chunk, self.geometry.sources[chunk].flatten()) for chunk in chunks]

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Views of (vectors, height): by (position, filter) and by (output channel, tap)."""
        by_filter, by_channel = outputs[:, : self._split], outputs[:, self._split :]
        return (
            by_filter.view(outputs.shape[0], self.geometry.positions, self.filters.rank),
            by_channel.view(outputs.shape[0], self.deltas.rank, self.width),
        )

    def apply(self, inputs: Tensor) -> Tensor:
        """Apply Û to every row of ``inputs`` (vectors, columns): (vectors, height)."""
        return torch.stack([self._apply(vector) for vector in inputs.unbind()])

    def apply_transposed(self, outputs: Tensor) -> Tensor:
        """Apply Ûᵀ to every row of ``outputs`` (vectors, height): (vectors, columns)."""
        return torch.stack([self._apply_transposed(vector) for vector in outputs.unbind()])

    def _apply(self, vector: Tensor) -> Tensor:
        geometry, q_w, q_d = self.geometry, self.filters.rows, self.deltas.rows
        padded = vector.new_zeros(geometry.size + 1, geometry.channels)
        padded[:-1] = vector.view(geometry.size, geometry.channels)
        by_filter = vector.new_empty(geometry.positions, self.filters.rank)
        by_channel = vector.new_zeros(self.deltas.rank, self.width)
        for chunk, read in self._chunks:
            patches = padded.index_select(0, read).view(-1, self.width)
            torch.mm(patches, q_w.T, out=by_filter[chunk])
            by_channel.addmm_(q_d[:, chunk], patches)
        return torch.cat([by_filter.flatten(), self.beside_filters(by_channel).flatten()])

    def _apply_transposed(self, vector: Tensor) -> Tensor:
        geometry, q_w, q_d = self.geometry, self.filters.rows, self.deltas.rows
        (by_filter,), (by_channel,) = self.split(vector[None])
        by_channel = self.beside_filters(by_channel)
        padded = vector.new_zeros(geometry.size + 1, geometry.channels)
        for chunk, read in self._chunks:
            patches = (by_filter[chunk] @ q_w).addmm_(q_d[:, chunk].T, by_channel)
            padded.index_add_(0, read, patches.view(-1, geometry.channels))
        return padded[:-1].flatten()

    def beside_filters(self, rows: Tensor) -> Tensor:
        """Π of every row over the taps."""
        return rows - (rows @ self.filters.rows.T) @ self.filters.rows


@dataclass(frozen=True)
class Equations:
    """S of one group, by orthonormal rows (dim S, size).

    ``strength`` is the least singular value of the equations over ‖im2col‖₂, ``flops`` what the
    basis took.
    """

    operator: ReducedU
    basis: RowBasis
    strength: float
    flops: float

    @property
    def determined(self) -> int:
        """Dimensions of the input that these equations determine."""
        return self.operator.geometry.channels * self.basis.rank

    @property
    def gap(self) -> SpectralGap:
        """The singular value gap that decided the dimension of S."""
        return self.basis.gap

    @property
    def rounding(self) -> float:
        """The basis's relative error: rounding errors over the least singular value."""
        return 8 * EPSILON / self.gap.smallest

    @property
    def projection_flops(self) -> float:
        """Floating-point operations of ``project``."""
        return 4.0 * self.operator.columns * len(self._rows)

    @property
    def _by_complement(self) -> bool:
        return 2 * self.basis.rank > self.operator.geometry.size

    @cached_property
    def _rows(self) -> Tensor:
        """A basis of S or of S^⊥, of the smaller one."""
        if not self._by_complement:
            return self.basis.rows
        complete: Tensor = torch.linalg.qr(self.basis.rows.T, mode="complete").Q
        return complete[:, self.basis.rank :].T.contiguous()

    def project(self, vectors: Tensor) -> Tensor:
        """Orthogonal projection of every row of (vectors, columns) onto S^⊥ ⊗ R^channels."""
        count, size = len(vectors), self.operator.geometry.size
        by_position = vectors.view(count, size, -1).transpose(0, 1).flatten(1)
        projected = self._rows.T @ (self._rows @ by_position)
        left: Tensor = projected if self._by_complement else by_position - projected
        back: Tensor = left.view(size, count, -1).transpose(0, 1)
        return back.flatten(1)

    def of_whole(self, beside: float) -> float:
        """Lower bound of Û's least singular value, both over ‖im2col‖₂, from that of W on S^⊥.

        A unit vector with a share sin φ in S has an image of at least ``strength`` · sin φ, and by
        W of at least ``beside`` · cos φ − sin φ; both are least where they are equal.
        """
        return self.strength * beside / math.hypot(beside, self.strength + 1)


def equations_of(operator: ReducedU, flops: float) -> Equations | None:
    """S, where there is any, its basis is clear, and it takes no more than ``flops``."""
    geometry, rank = operator.geometry, operator.deltas.rank
    low, high = sorted((geometry.taps * rank, geometry.size))
    cost = 4.0 * high * low**2 + 24.0 * low**3
    if not low or low * high > MOST_ELEMENTS or cost > flops:
        return None
    placed = _placed(operator)
    longest = float(placed.norm(dim=1).max())
    if not longest:
        return None
    basis = row_space(placed, max(placed.shape) * EPSILON)
    if basis.gap.smallest < _CLEAR:
        return None
    return Equations(operator, basis, longest * basis.gap.smallest / geometry.scale, cost)


def _placed(operator: ReducedU) -> Tensor:
    """Place a basis of output gradients where each tap reads, (taps · gradients, size)."""
    geometry, rows = operator.geometry, operator.deltas.rows
    placed = rows.new_zeros(geometry.taps, geometry.size + 1, len(rows))
    for tap, read in zip(placed, geometry.sources.T, strict=True):
        tap.index_add_(0, read, rows.T)
    return placed[:, :-1].mT.flatten(0, 1)
