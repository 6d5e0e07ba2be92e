"""The two sides that Û can be seen to have full rank from: its inputs, or its rows.

Thin layers need a preconditioner, W's Gram matrix on the inputs factored as a band: few input
channels (and depthwise convolutions, one to a group) make W almost square, badly conditioned and
narrow. Conjugate gradients need thousands of iterations where the band Cholesky factor of WᵀW + εI
costs less than a hundred of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_solve_banded, cholesky_banded
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from gradaudit.ranks.bound import RowSpace
from gradaudit.ranks.operator import ReducedU

Map = Callable[[Tensor], Tensor]

_SHIFT = 1e-10
"""ε over ‖im2col‖₂²: the solve must not lose more digits than the probes need."""
_WORTH_ITERATIONS = 100
_MOST_ELEMENTS = 32_000_000


@dataclass(frozen=True)
class Side:
    """A space in which B = Ûᵀ or B = Û spans a part; what is left over is its nullity.

    Of every row, ``span`` gives B, ``against`` Bᵀ, ``confine`` the orthogonal projection onto the
    space, whose vectors have so many elements as ``length``, and ``precondition`` about (B Bᵀ)⁻¹,
    symmetric and positive definite.
    """

    name: str
    operator: ReducedU
    dimension: int
    length: int
    span: Map
    against: Map
    confine: Map
    precondition: Map

    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, length) standard Gaussian vectors of the space."""
        drawn = torch.randn(count, self.length, dtype=torch.float64, generator=generator)
        return self.confine(drawn.to(self.operator.geometry.sources.device))


def input_side(rows: RowSpace) -> Side:
    """The inputs that are read at all, spanned by the rows of Û.

    (WᵀW + εI)⁻¹ preconditions where W can determine the inputs and is thin.
    """
    operator, geometry = rows.operator, rows.operator.geometry
    touched = (geometry.reads > 0).repeat_interleave(geometry.channels)
    return Side(
        name="inputs",
        operator=operator,
        dimension=geometry.touched,
        length=operator.columns,
        span=operator.apply_transposed,
        against=operator.apply,
        confine=lambda vectors: vectors * touched,
        precondition=(gram_inverse(operator) if rows.filters_suffice else None) or _identity,
    )


def row_side(rows: RowSpace) -> Side:
    """The rows of Û, without relations that hold for all inputs, spanned by its columns."""
    operator = rows.operator
    return Side(
        name="rows",
        operator=operator,
        dimension=rows.dimension,
        length=operator.height,
        span=operator.apply,
        against=operator.apply_transposed,
        confine=rows.project,
        precondition=_identity,
    )


def smaller_side(rows: RowSpace) -> Side:
    """The side of the smaller dimension, which has the smaller nullity."""
    by_inputs = rows.operator.geometry.touched <= rows.dimension
    return input_side(rows) if by_inputs else row_side(rows)


def _identity(vectors: Tensor) -> Tensor:
    return vectors


def gram_inverse(operator: ReducedU) -> Map | None:
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
