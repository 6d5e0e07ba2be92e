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


def joint_triangle(triangle: Array | None, block: Array) -> Array:
    """The coordinates of the rows of a matrix, updated by more of its columns.

    Args:
        triangle: (rows, d), what this function gave for the columns so far; None at the start.
        block: (rows, more columns).

    Returns:
        (rows, d) with d ≤ rows and the inner products of the rows of all columns so far.
    """
    tall = block.T if triangle is None else np.concatenate([triangle.T, block.T])
    updated: Array = np.asarray(np.linalg.qr(tall, mode="r"))
    return updated.T


def principal_coordinates(coordinates: Array) -> Array:
    """The rows along their principal directions, uncentred, without those of rounding error.

    Args:
        coordinates: (rows, d).

    Returns:
        (rows, r), its columns orthogonal and in descending order of their energy.
    """
    left, values, _ = np.linalg.svd(coordinates, full_matrices=False)
    kept = values > negligible(coordinates.shape) * values.max(initial=0.0)
    found: Array = left[:, kept] * values[kept]
    return found


def directions_holding(share: float, energies: Array) -> int:
    """How many of the largest energies (descending) make up this share of their sum."""
    held = np.cumsum(energies)
    return int(np.searchsorted(held, share * held[-1] * (1 - 1e-12))) + 1


def leading_directions(matrices: Array, k: int, floor: float = 0.0) -> Array:
    """Orthonormal bases of the k leading right singular directions of each matrix.

    Args:
        matrices: (…, rows, d).
        k: how many directions, at most d.
        floor: singular values up to this are rounding error, and their directions lacking.

    Returns:
        (…, d, k), columns orthonormal, zero where a matrix has fewer directions.
    """
    _, values, right = np.linalg.svd(matrices, full_matrices=False)
    least = np.maximum(floor, negligible(matrices.shape[-2:]) * values[..., :1])
    kept = values[..., :k] > least
    return _padded(np.swapaxes(right[..., :k, :] * kept[..., None], -1, -2), k)


def quick_leading_directions(matrices: Array, k: int) -> Array:
    """The same by the smaller Gram matrix: several times faster.

    Directions with less than 1e-7 of the largest singular value count as lacking, and those near
    that are off by up to 1e-2; directions that hold a good share of the energy are exact to 1e-10.
    """
    rows, dimensions = matrices.shape[-2:]
    transposed = np.swapaxes(matrices, -1, -2)
    wide = rows < dimensions
    gram = matrices @ transposed if wide else transposed @ matrices
    energies, vectors = np.linalg.eigh(gram)
    energies = np.clip(energies[..., ::-1][..., :k], 0.0, None)
    basis = vectors[..., ::-1][..., :k]
    kept = energies > 1e-14 * energies[..., :1]
    if wide:
        basis = transposed @ (basis / np.sqrt(np.where(kept, energies, 1.0))[..., None, :])
    return _padded(basis * kept[..., None, :], k)


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


def _padded(basis: Array, k: int) -> Array:
    """With columns of zeros up to k of them."""
    return np.pad(basis, [(0, 0)] * (basis.ndim - 1) + [(0, k - basis.shape[-1])])
