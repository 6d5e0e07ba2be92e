"""The row spaces of both layers' gradients, above the level of rounding and noise.

The gradient [dW | db] = Σ_i δ_i [a_i; 1]ᵀ of a fully connected layer has its rows in the span of
what came in, so that a record can be tested alone: [a; 1] lies in the row space where it was in the
batch, as long as the δ_i are linearly independent (Petrov et al. 2024, DAGER, theorem 3.1).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.attack_text.span import noise_level

_LEVELS = ((torch.bfloat16, 1e-2), (torch.float16, 1e-3), (torch.float32, 2e-7))
"""Singular values, over the largest, that rounding to a type leaves."""
_DOUBLE = 1e-13
_NOISE = 30.0
"""Deviation of an element over the rounding of the largest, from which on it is taken for noise."""
_WHOLE = 1e5
"""How far rounding moves multiplicities, over its level (measured of rows that are there: 7e-4 in
float32, 6e-15 in float64)."""
_EDGE = 1.05
"""The largest singular value of noise is taken to be so many times that of its law."""


@dataclass(frozen=True)
class GradientRowSpace:
    """The row space of a layer's gradient.

    Attributes:
        left: (outputs, rank) left singular vectors.
        values: (rank,) singular values, falling.
        rows: (rank, inputs + 1) right singular vectors.
        rest: (inputs + 1 − rank, inputs + 1) an orthonormal basis of what is outside.
    """

    left: Tensor
    values: Tensor
    rows: Tensor
    rest: Tensor

    @classmethod
    def of(cls, matrix: Tensor, edge: float) -> Self:
        """The singular vectors whose values are above an edge."""
        left, values, right = torch.linalg.svd(matrix)
        rank = int((values > edge).sum())
        return cls(left[:, :rank], values[:rank], right[:rank], right[rank:])

    @property
    def rank(self) -> int:
        """Dimensions of the row space."""
        return len(self.values)

    def outside(self, vectors: Tensor) -> Tensor:
        """What of [a; 1] lies outside, over its length: (points, inputs + 1 − rank)."""
        extended = torch.cat([vectors, vectors.new_ones(len(vectors), 1)], dim=1)
        outside: Tensor = extended @ self.rest.T / extended.norm(dim=1, keepdim=True)
        return outside

    def outside_columns(self, deltas: Tensor) -> Tensor:
        """The share of δ that lies outside the column space, (points,) of (points, outputs)."""
        missed = deltas - deltas @ self.left @ self.left.T
        length = torch.linalg.vector_norm(deltas, dim=1)
        tiny = torch.finfo(deltas.dtype).tiny
        share: Tensor = torch.linalg.vector_norm(missed, dim=1) / length.clamp(min=tiny)
        return share

    def coefficient(self, vectors: Tensor, deltas: Tensor) -> Tensor:
        """How often δ [a; 1]ᵀ is in the gradient: 1 / ([a; 1]ᵀ M⁺ δ), (points,).

        It is the c for which M − c δ [a; 1]ᵀ has a smaller rank (Wedderburn's rank reduction).
        """
        extended = torch.cat([vectors, vectors.new_ones(len(vectors), 1)], dim=1)
        return 1 / ((extended @ self.rows.T / self.values) * (deltas @ self.left)).sum(dim=1)


@dataclass(frozen=True)
class Precision:
    """How exact an update is, told from its numbers.

    Attributes:
        edges: of both layers, below which singular values are rounding or noise.
        exact: whether it is of double precision without noise.
        noisy: whether there is noise beside rounding.
        accept: the residual up to which a row may be named, beside the limit that decoys set for an
            update that is not exact.
        whole: how far a multiplicity may be from a whole number.
    """

    edges: tuple[float, float]
    exact: bool
    noisy: bool
    accept: float
    whole: float

    @classmethod
    def of(
        cls, update: Mapping[str, Tensor], matrices: Sequence[Tensor | None], records: int
    ) -> Self:
        """Of an update of so many records, with the matrices of both layers."""
        level = rounding(update)
        edges, noisy = [], False
        for matrix in matrices:
            edge, noise = (0.0, 0.0) if matrix is None else edge_of(matrix, level, records)
            noisy |= matrix is not None and noise > _NOISE * level * float(matrix.abs().max())
            edges.append(edge)
        double = level == _DOUBLE
        accept = 1e-8 if double and not noisy else 1.0
        whole = 0.3 if noisy else (1e-6 if double else _WHOLE * level)
        return cls((edges[0], edges[1]), double and not noisy, noisy, accept, whole)


def rounding(update: Mapping[str, Tensor]) -> float:
    """The level of singular values, over the largest, that the update's rounding makes."""
    for dtype, level in _LEVELS:
        if all(torch.equal(part.to(dtype).to(part.dtype), part) for part in update.values()):
            return level
    return _DOUBLE


def edge_of(matrix: Tensor, level: float, records: int) -> tuple[float, float]:
    """Below which singular values are rounding or noise, and the standard deviation of the noise.

    Args:
        matrix: of a layer.
        level: see ``rounding``.
        records: behind the update; what comes behind as many singular values is noise alone.
    """
    values = torch.linalg.svdvals(matrix)
    outputs, inputs = matrix.shape
    noise = noise_level(values, records, (outputs, inputs)) if records < len(values) else 0.0
    law = _EDGE * noise * (math.sqrt(outputs) + math.sqrt(inputs))
    return max(level * float(values[0]), law), noise
