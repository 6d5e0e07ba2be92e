"""Principal angles between subspaces, and distances made of them.

Å. Björck and G. H. Golub, "Numerical methods for computing angles between linear subspaces" (1973):
cosines are the singular values of Q₀ᵀQ₁, sines those of (I − Q₀Q₀ᵀ)Q₁. A cosine tells nothing of an
angle below 1e-8 and a sine nothing of one near a right angle, so each is used where it is exact.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DISTANCES: Mapping[str, Callable[[Array], Array]] = {
    "grassmann": lambda angles: np.sqrt(np.square(angles).sum(axis=-1)),
    "asimov": lambda angles: angles.max(axis=-1, initial=0.0),
    "chordal": lambda angles: np.sqrt(np.square(np.sin(angles)).sum(axis=-1)),
    "procrustes": lambda angles: 2 * np.sqrt(np.square(np.sin(angles / 2)).sum(axis=-1)),
}
"""Of principal angles (…, k) in radians: K. Ye and L.-H. Lim, "Schubert varieties and distances
between subspaces of different dimensions" (2016), table 2."""

_HALF = np.sqrt(0.5)


def principal_angles(first: Array, second: Array, *, sines: bool = True) -> Array:
    """Principal angles between the column spaces of orthonormal bases, in ascending order.

    A column of zeros stands for a direction that the subspace lacks: a right angle with any other.

    Args:
        first: (…, dimensions, k), orthonormal columns or zeros.
        second: the same of the other subspace.
        sines: whether small angles are taken from their sines; without it they are off by up to
            1e-7.

    Returns:
        (…, k), in [0, π/2].
    """
    product = np.swapaxes(first, -1, -2) @ second
    cosines = np.clip(np.linalg.svd(product, compute_uv=False), 0.0, 1.0)
    angles: Array = np.arccos(cosines)
    if not sines or not (cosines > _HALF).any():
        return angles
    missing = 1 - np.round(np.square(second).sum(axis=-2))
    marks = missing[..., None] * np.eye(missing.shape[-1])
    rest = np.concatenate([second - first @ product, marks], axis=-2)
    found = np.clip(np.linalg.svd(rest, compute_uv=False)[..., ::-1], 0.0, 1.0)
    return np.where(cosines > _HALF, np.arcsin(found), angles)
