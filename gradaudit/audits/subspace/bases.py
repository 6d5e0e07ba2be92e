"""Joint coordinates of many vectors, and orthonormal bases of what some of them span.

All angles between subspaces that n vectors span are in the vectors' coordinates in a joint
orthonormal basis, at most n numbers each, however many elements the vectors have. They are the
triangle of a QR decomposition, taken block by block of elements (J. Demmel et al.,
"Communication-optimal parallel and sequential QR and LU factorizations", 2012), which keeps the
small singular values that a Gram matrix would square away.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_SLAB = 1 << 18
"""Numbers that are decomposed at a time: some MiB, which LAPACK copies."""
_MODERATE = 1e-7
"""Smallest eigenvalue of a Gram matrix over the largest, from which coordinates are exact to 1e-9.
The vectors are then so far from depending on each other that no angle between two groups of them
is below 1e-4."""


def joint_triangle(triangle: Array | None, block: Array) -> Array:
    """The coordinates of the rows of a matrix, updated by more of its columns.

    Args:
        triangle: (rows, d), what this function gave for the columns so far; None at the start.
        block: (rows, more columns).

    Returns:
        (rows, d) with d ≤ rows and the inner products of the rows of all columns so far.
    """
    rows, columns = block.shape
    width = max(4 * rows, _SLAB // rows)
    for start in range(0, columns, width):
        tall = block[:, start : start + width].T
        tall = tall if triangle is None else np.concatenate([triangle.T, tall])
        triangle = np.asarray(np.linalg.qr(tall, mode="r")).T
    return block[:, :0] if triangle is None else triangle


def principal_coordinates(matrix: Array) -> Array:
    """Coordinates of the rows in their principal directions, uncentred, but for rounding error.

    By the Gram matrix where the matrix is wide and its condition moderate, which is quicker.

    Args:
        matrix: (rows, columns): vectors, or their coordinates in any joint orthonormal basis.

    Returns:
        (rows, r), columns orthogonal and in descending order of their energy, with the inner
        products of the rows.
    """
    rows, columns = matrix.shape
    if columns > 2 * rows:
        energies, vectors = np.linalg.eigh(matrix @ matrix.T)
        if energies[0] > _MODERATE * energies[-1]:
            return np.asarray(vectors[:, ::-1] * np.sqrt(energies[::-1]))
        matrix = joint_triangle(None, matrix)
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    kept = values > negligible((rows, columns)) * values.max(initial=0.0)
    return np.asarray(left[:, kept] * values[kept])


def directions_holding(share: float, energies: Array) -> int:
    """How many of the largest energies (descending) make up this share of their sum."""
    held = np.cumsum(energies)
    return int(np.searchsorted(held, share * held[-1] * (1 - 1e-12))) + 1


def leading_directions(
    matrices: Array, k: int, floor: float = 0.0, *, reliable: float = 1e-3
) -> Array:
    """Orthonormal bases of the k leading right singular directions of each matrix.

    Args:
        matrices: (…, rows, d).
        k: how many directions, at most d.
        floor: singular values up to this are rounding error, and their directions lacking.
        reliable: matrices in which every direction holds at least this share of the first one's
            energy are decomposed by their Gram matrices, which is off by 1e-16 over that share.

    Returns:
        (…, d, k), columns orthonormal, zero where a matrix has fewer directions.
    """
    leading = matrices.shape[:-2]
    stack = matrices.reshape(-1, *matrices.shape[-2:])
    if min(stack.shape[1:]) < k:
        return _by_values(matrices, k, floor)
    bases, energies = _by_energies(stack, k)
    weak = ~(energies[:, -1] > np.maximum(reliable * energies[:, 0], floor**2))
    if weak.any():
        bases[weak] = _by_values(stack[weak], k, floor)
    return bases.reshape(*leading, *bases.shape[1:])


def _by_values(matrices: Array, k: int, floor: float) -> Array:
    _, values, right = np.linalg.svd(matrices, full_matrices=False)
    least = np.maximum(floor, negligible(matrices.shape[-2:]) * values[..., :1])
    kept = values[..., :k] > least
    basis = np.swapaxes(right[..., :k, :] * kept[..., None], -1, -2)
    return np.pad(basis, [(0, 0)] * (basis.ndim - 1) + [(0, k - basis.shape[-1])])


def _by_energies(matrices: Array, k: int) -> tuple[Array, Array]:
    """Bases (…, d, k) by the smaller Gram matrix, and the energies (…, k) of the directions."""
    transposed = np.swapaxes(matrices, -1, -2)
    wide = matrices.shape[-2] < matrices.shape[-1]
    gram = matrices @ transposed if wide else transposed @ matrices
    energies, vectors = np.linalg.eigh(gram)
    energies, basis = energies[..., ::-1][..., :k], vectors[..., ::-1][..., :k]
    if wide:
        values = np.sqrt(np.maximum(energies, np.finfo(np.float64).tiny))
        basis = transposed @ (basis / values[..., None, :])
    return basis, energies


def numerical_rank(matrix: Array, floor: float = 0.0) -> int:
    """How many singular values are more than rounding error and ``floor``."""
    values = np.linalg.svd(matrix, compute_uv=False)
    least = max(floor, negligible(matrix.shape) * values.max(initial=0.0))
    return int((values > least).sum())


def negligible(shape: tuple[int, ...]) -> float:
    """Singular values up to this share of the largest are rounding error, as NumPy's rank has it.

    >>> negligible((4, 1000)) == 1000 * 2.0**-52
    True
    """
    return float(max(shape) * np.finfo(np.float64).eps)
