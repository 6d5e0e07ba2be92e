"""The two sides that Û can be seen to have full rank from: its inputs, or its rows.

Thin layers need a preconditioner, W's Gram matrix on the inputs factored as a band: few input
channels (and depthwise convolutions, one to a group) make W almost square, badly conditioned and
narrow. Conjugate gradients need thousands of iterations where the band Cholesky factor of WᵀW + εI
costs less than a hundred of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_solve_banded, cholesky_banded
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from gradaudit.ranks.bound import RowSpace
from gradaudit.ranks.operator import ReducedU

_SHIFT = 1e-10
"""ε over ‖im2col‖₂²: the solve must not lose more digits than the probes need."""
_WORTH_ITERATIONS = 100
_MOST_ELEMENTS = 32_000_000


@dataclass(frozen=True)
class Side(ABC):
    """A space in which B = Ûᵀ or B = Û spans a part; what is left over is its nullity."""

    rows: RowSpace
    name: ClassVar[str]

    @property
    def operator(self) -> ReducedU:
        """Û."""
        return self.rows.operator

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Dimension of the space."""

    @abstractmethod
    def span(self, coefficients: Tensor) -> Tensor:
        """B of every row."""

    @abstractmethod
    def against(self, vectors: Tensor) -> Tensor:
        """Bᵀ of every row."""

    def precondition(self, vectors: Tensor) -> Tensor:
        """About (B Bᵀ)⁻¹ of every row, symmetric and positive definite; by default the identity."""
        return vectors

    @abstractmethod
    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, …) standard Gaussian vectors of the space."""

    def _gaussian(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        drawn = torch.randn(count, length, dtype=torch.float64, generator=generator)
        return drawn.to(self.operator.geometry.sources.device)


class InputSide(Side):
    """The inputs that are read at all, spanned by the rows of Û."""

    name = "inputs"

    @property
    def dimension(self) -> int:
        """Number of touched inputs."""
        return self.operator.geometry.touched

    def span(self, coefficients: Tensor) -> Tensor:
        """Ûᵀ of every row."""
        return self.operator.apply_transposed(coefficients)

    def against(self, vectors: Tensor) -> Tensor:
        """Û of every row."""
        return self.operator.apply(vectors)

    def precondition(self, vectors: Tensor) -> Tensor:
        """(WᵀW + εI)⁻¹ of every row where W can determine the inputs and is thin."""
        return self._gram_inverse(vectors) if self._gram_inverse else vectors

    @cached_property
    def _gram_inverse(self) -> Callable[[Tensor], Tensor] | None:
        return gram_inverse(self.operator) if self.rows.filters_suffice else None

    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        """Gaussian vectors that are zero on untouched inputs."""
        geometry = self.operator.geometry
        touched = (geometry.reads > 0).repeat_interleave(geometry.channels)
        return self._gaussian(count, self.operator.columns, generator) * touched


class RowSide(Side):
    """The rows of Û, without relations that hold for all inputs, spanned by its columns."""

    name = "rows"

    @property
    def dimension(self) -> int:
        """Number of rows that padding leaves independent."""
        return self.rows.dimension

    def span(self, coefficients: Tensor) -> Tensor:
        """Û of every row."""
        return self.operator.apply(coefficients)

    def against(self, vectors: Tensor) -> Tensor:
        """Ûᵀ of every row."""
        return self.operator.apply_transposed(vectors)

    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        """Gaussian vectors projected onto the rows' space."""
        return self.rows.project(self._gaussian(count, self.operator.height, generator))


def smaller_side(rows: RowSpace) -> Side:
    """The side of the smaller dimension, which has the smaller nullity."""
    return min(InputSide(rows), RowSide(rows), key=lambda side: side.dimension)


def gram_inverse(operator: ReducedU) -> Callable[[Tensor], Tensor] | None:
    """(WᵀW + εI)⁻¹ on every row of (vectors, columns), or None where it is not worth its cost."""
    band = _bandwidth(operator)
    gram_flops = 2.0 * operator.geometry.positions * operator.filters.rank * operator.width**2
    flops = gram_flops + operator.columns * float(band) ** 2
    if flops > 2 * _WORTH_ITERATIONS * operator.flops or operator.columns * band > _MOST_ELEMENTS:
        return None
    factor = cholesky_banded(_gram_band(operator, band), overwrite_ab=True, check_finite=False)

    def solve(vectors: Tensor) -> Tensor:
        solved = cho_solve_banded((factor, False), vectors.cpu().numpy().T, check_finite=False)
        return torch.from_numpy(np.ascontiguousarray(solved.T)).to(vectors.device)

    return solve


def _bandwidth(operator: ReducedU) -> int:
    """Diagonals of WᵀW, the main one included."""
    geometry = operator.geometry
    read = geometry.sources < geometry.size
    last = torch.where(read, geometry.sources, 0).amax(dim=1)
    first = torch.where(read, geometry.sources, geometry.size).amin(dim=1)
    return (int((last - first).clamp_min(0).max()) + 1) * geometry.channels


def _gram_band(operator: ReducedU, band: int) -> NDArray[np.float64]:
    """The upper diagonals of WᵀW + εI as LAPACK wants them: (band, columns), the main one last."""
    filters = _filters_matrix(operator)
    gram = (filters.T @ filters).tocoo()
    row, column = gram.coords
    upper = row <= column
    diagonals = np.zeros((band, operator.columns))
    diagonals[band - 1 + row[upper] - column[upper], column[upper]] = gram.data[upper]
    diagonals[-1] += _SHIFT * operator.geometry.scale**2
    return diagonals


def _filters_matrix(operator: ReducedU) -> csr_array:
    """W as a sparse matrix of (output position · filter, spatial position · channel)."""
    geometry, filters = operator.geometry, operator.filters.rows.cpu().numpy()
    sources = geometry.sources.cpu().numpy()
    at, tap = np.nonzero(sources < geometry.size)
    filter_, channel = np.indices((len(filters), geometry.channels))
    rows = at[:, None, None] * len(filters) + filter_
    columns = sources[at, tap][:, None, None] * geometry.channels + channel
    values = filters.reshape(len(filters), geometry.taps, geometry.channels)[:, tap]
    entries = np.moveaxis(values, 1, 0), (rows, columns)
    shape = (geometry.positions * len(filters), operator.columns)
    return csr_array(coo_array((entries[0].ravel(), (rows.ravel(), columns.ravel())), shape=shape))
