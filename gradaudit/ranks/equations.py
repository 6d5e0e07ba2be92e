"""Equations on a convolution's input from output gradients alone, channel by channel.

The gradient of a weight is ∇_Z J P(x)ᵀ: for an output channel and a tap, the same inner product
with every input channel, that with the channel's output gradient put where the tap reads. These
vectors span S, a part of the space R^size of one input channel; the rows of U span S ⊗ R^channels
and those of W beside it, so that

    rank U = channels · dim S + rank of W on S^⊥ ⊗ R^channels.

Where S is all that is read, W adds nothing, and elsewhere W has less to settle: with S eliminated,
conjugate gradients need a third of the iterations (VGG16's 256 channels at 56×56).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradaudit.ranks.operator import (
    EPSILON,
    MOST_ELEMENTS,
    ReducedU,
    RowBasis,
    SpectralGap,
    row_space,
)

_CLEAR = 1e-6
"""S is eliminated if its basis is exact: no singular value between rounding and this."""


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
        """How far the basis may be off, relative: rounding errors over the least singular value."""
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
    """(taps · output gradients, size): a basis of the output gradients where each tap reads."""
    geometry, rows = operator.geometry, operator.deltas.rows
    placed = rows.new_zeros(geometry.taps, geometry.size + 1, len(rows))
    for tap, read in zip(placed, geometry.sources.T, strict=True):
        tap.index_add_(0, read, rows.T)
    return placed[:, :-1].mT.flatten(0, 1)
