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

_SMALL = 1e-2
"""Angles below this are taken from their sines; others are exact to 1e-14 by their cosines."""


def principal_angles(first: Array, second: Array) -> Array:
    """Principal angles between the column spaces of orthonormal bases, in ascending order.

    A column of zeros stands for a direction that the subspace lacks: a right angle with any other.

    Args:
        first: (dimensions, k), orthonormal columns or zeros.
        second: the same of the other subspace.

    Returns:
        (k,), in [0, π/2].
    """
    left, cosines, right = np.linalg.svd(first.T @ second)
    angles: Array = np.arccos(np.clip(cosines, 0.0, 1.0))
    few = angles < _SMALL
    if few.any():
        rest = second @ right[few].T - first @ left[:, few] * cosines[few]
        sines = np.linalg.svd(rest, compute_uv=False)[::-1]
        angles[few] = np.arcsin(np.clip(sines, 0.0, 1.0))
    return angles


def quick_angles(first: Array, second: Array) -> Array:
    """The same of many pairs of bases, (…, dimensions, k), to within 1e-7."""
    cosines = np.linalg.svd(np.swapaxes(first, -1, -2) @ second, compute_uv=False)
    angles: Array = np.arccos(np.clip(cosines, 0.0, 1.0))
    return angles
