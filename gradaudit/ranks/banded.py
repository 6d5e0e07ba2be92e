"""A preconditioner for thin layers: W's Gram matrix on the inputs, factored as a band.

Few input channels (and depthwise convolutions, one to a group) make W almost square, badly
conditioned and narrow: conjugate gradients need thousands of iterations where the band Cholesky
factor of WᵀW + εI costs less than a hundred of them.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_solve_banded, cholesky_banded
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from gradaudit.ranks.operator import ReducedU

_SHIFT = 1e-10
"""ε over ‖im2col‖₂²: the solve must not lose more digits than the probes need."""

_WORTH_ITERATIONS = 100
_MOST_ELEMENTS = 32_000_000


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
