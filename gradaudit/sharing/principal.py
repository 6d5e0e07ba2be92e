"""Principal components of rows that need not fit in memory.

The Gram matrix K = G Gᵀ of the n fitted rows is summed in float64 over blocks of elements; with
K centred = U Λ Uᵀ the components are V = Gᵀ W for W = U Λ^{-1/2}, and a row g projects to
(g − ḡ) V. Where rows are factors, g V = ⟨g, G⟩ W needs no V. Where rows have fewer elements than
there are rows, V is had from their covariance.
"""

from __future__ import annotations

from dataclasses import dataclass

import scipy.linalg
import torch
from torch import Tensor

from gradaudit.sharing.rows import Factors, GradientRows

_BLOCK = 8192
_SMALLEST = 1e-12
"""Components of less than this share of the largest one's variance are rounding,"""
_ROUNDING = 1e-14
"""and so are those of less than this share of a row's squared norm, times the number of rows."""


@dataclass(frozen=True)
class Components:
    """Principal components in terms of the fitted rows.

    Attributes:
        weights: W (fitted, components) float64.
        offset: ḡ V (components,) float64.
    """

    weights: Tensor
    offset: Tensor

    @classmethod
    def of(cls, gram: Tensor, count: int) -> Components:
        """The first components, of largest variance first.

        As many as have any variance, at least one. A component's sign is such that the first
        fitted row that weighs more than half of the heaviest is on its positive side.

        Args:
            gram: (fitted, fitted) float64 inner products.
            count: at most how many.
        """
        centred = gram - gram.mean(dim=0)
        centred = centred - centred.mean(dim=1, keepdim=True)
        values, vectors = _leading((centred + centred.T) / 2, min(count, len(gram)))
        kept = _with_variance(values, len(gram), gram.diagonal().max())
        if kept == 0:  # all rows are alike
            weights = torch.zeros_like(vectors[:, :1])
            return cls(weights, gram.mean(dim=0) @ weights)
        vectors = vectors[:, :kept]
        weights = vectors * _signs(vectors) / values[:kept].sqrt()
        return cls(weights, gram.mean(dim=0) @ weights)


def _with_variance(values: Tensor, rows: int, square: Tensor) -> int:
    """How many of these variances, descending, are more than rounding.

    Args:
        values: (components,) sums of squares along them.
        rows: how many are fitted.
        square: largest squared norm of a row.
    """
    rounding = _ROUNDING * rows * square
    return int((values > torch.maximum(_SMALLEST * values[0], rounding)).sum())


def _signs(coordinates: Tensor) -> Tensor:
    """Of each column's first number that is more than half of the heaviest, (1, columns)."""
    sizes = coordinates.abs()
    first = (sizes > sizes.amax(dim=0) / 2).int().argmax(dim=0, keepdim=True)
    return coordinates.gather(0, first).sign()


def _leading(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of a symmetric matrix, descending, and their vectors."""
    last = len(matrix) - 1
    values, vectors = scipy.linalg.eigh(
        matrix.cpu().numpy(), subset_by_index=[last + 1 - count, last], check_finite=False
    )
    found = (torch.from_numpy(values).flip(0), torch.from_numpy(vectors).flip(1))
    return found[0].to(matrix), found[1].to(matrix)


def gram_of(rows: Tensor) -> Tensor:
    """Inner products of rows (n, elements), (n, n) float64, block by block of elements."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], _BLOCK):
        block = rows[:, start : start + _BLOCK].double()
        total.addmm_(block, block.T)
    return total


@dataclass(frozen=True)
class Projection:
    """Onto formed components.

    Attributes:
        axes: V (elements, components).
        offset: (components,) float64.
    """

    axes: Tensor
    offset: Tensor

    @property
    def bytes(self) -> int:
        """That it takes."""
        return self.axes.numel() * self.axes.element_size()

    def __call__(self, rows: Tensor) -> Tensor:
        """(rows, components) of (rows, elements)."""
        return rows @ self.axes - self.offset.to(self.axes)


def narrow_projection(rows: Tensor, count: int) -> Projection:
    """The same components as ``Components.of`` finds, from the smaller covariance.

    Args:
        rows: (n, elements), of fewer elements than there are rows.
        count: at most how many components.
    """
    double = rows.double()
    mean = double.mean(dim=0)
    centred = double - mean
    values, axes = _leading(centred.T @ centred, min(count, rows.shape[1]))
    kept = _with_variance(values, len(rows), double.square().sum(dim=1).max())
    if kept == 0:  # all rows are alike
        axes = torch.zeros_like(axes[:, :1])
    else:
        axes = axes[:, :kept] * _signs(centred @ axes[:, :kept])
    return Projection(axes.to(rows), mean @ axes)


@dataclass(frozen=True)
class KernelProjection:
    """Onto components that are left in terms of the fitted rows.

    Attributes:
        fitted: the fitted rows.
        components: their weights.
    """

    fitted: Factors
    components: Components

    @property
    def bytes(self) -> int:
        """That it takes."""
        return len(self.fitted) * self.fitted.width * self.fitted.left.element_size()

    def __call__(self, rows: GradientRows) -> Tensor:
        """(rows, components)."""
        assert isinstance(rows, Factors)
        found = rows.gram(self.fitted) @ self.components.weights - self.components.offset
        return found.to(rows.left.dtype)
