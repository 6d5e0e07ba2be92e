"""Principal angles between the spans of two groups of long vectors, mostly by matrix products.

A QR decomposition or SVD of every group, as in Björck and Golub's algorithm, works through the long
side in slow steps. Gram matrices take it in one product each and are enough where a group's
condition is moderate; otherwise they still make a basis that is nearly orthonormal, and the Gram
matrices of that one are as good as a QR decomposition ("CholeskyQR2": Y. Yamamoto et al., "Roundoff
error analysis of the CholeskyQR2 algorithm", 2015). What a Gram matrix cannot see, directions with
less than a millionth of the largest singular value and angles below a hundredth, is looked at
explicitly.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from gradaudit.subspaces.bases import negligible

Array = NDArray[np.float64]
Vectors = NDArray[np.floating]

_BLOCK = 4096
_UNSEEN = 1e-12
"""Share of the largest eigenvalue below which a Gram matrix tells nothing of a direction."""
_FINE = 1e-9
"""Rounding error of a basis that needs no second round: angles are then off by 1e-7 at most."""
_SMALL = 1e-2
"""Angles below this are taken from their sines."""


@dataclass(frozen=True)
class Span:
    """A nearly orthonormal basis of what some vectors span.

    Attributes:
        vectors: (vectors, elements).
        weights: (directions, vectors), which make directions of the vectors.
        extra: (more directions, elements), those that had to be worked out.
        error: how far from orthonormal rounding leaves the directions.
    """

    vectors: Vectors
    weights: Array
    extra: Array
    error: float

    @classmethod
    def of(cls, vectors: Vectors) -> "Span":
        """The span of the rows, leaving out directions that are rounding error."""
        gram = np.zeros((len(vectors), len(vectors)))
        for columns in _blocks(vectors):
            block = vectors[:, columns].astype(np.float64, copy=False)
            gram += block @ block.T
        norms = np.sqrt(gram.diagonal())
        smallest = negligible(vectors.shape)
        large = norms > smallest * norms.max(initial=0.0)
        scale = np.where(large, 1 / np.where(large, norms, 1.0), 0.0)
        energies, directions = np.linalg.eigh(scale[:, None] * gram * scale)
        most = float(energies.max(initial=0.0))
        seen = energies > _UNSEEN * most
        weights = (directions[:, seen] / np.sqrt(energies[seen])).T * scale
        least = float(energies[seen].min(initial=most))
        error = float(np.finfo(np.float64).eps * most / least) if most else 0.0
        span = cls(vectors, weights, np.zeros((0, vectors.shape[1])), error)
        unseen = directions[:, ~seen].T * scale
        if not np.any(unseen):
            return span
        return span._with_unseen(unseen, smallest * np.sqrt(most))

    def block(self, columns: slice) -> Array:
        """Some elements of all directions, (directions, elements)."""
        known = self.weights @ self.vectors[:, columns].astype(np.float64, copy=False)
        return np.concatenate([known, self.extra[:, columns]])

    def _with_unseen(self, weights: Array, floor: float) -> "Span":
        """With the directions that are left of these, once those known are taken away."""
        left = np.concatenate([weights @ self.vectors[:, c] for c in _blocks(self.vectors)], axis=1)
        if np.linalg.norm(left) <= floor:  # as where vectors are repeated
            return self
        for _ in range(3):  # the basis is orthonormal to 1e-4
            shared = sum(left[:, c] @ self.block(c).T for c in _blocks(left))
            for c in _blocks(left):
                left[:, c] -= shared @ self.block(c)
        _, values, found = np.linalg.svd(left, full_matrices=False)
        extra = found[values > floor]
        return Span(
            self.vectors, self.weights, extra, max(self.error, 1.0) if len(extra) else self.error
        )


def span_angles(first: Vectors, second: Vectors) -> Array:
    """Principal angles between the spans of two groups of vectors, ascending, in radians.

    As ``scipy.linalg.subspace_angles`` of the transposed matrices, but ascending and several times
    faster where vectors are long. They agree to 1e-7, angles below 0.01 to rounding error.

    Args:
        first: (vectors, elements), any precision; computed in double.
        second: (vectors, elements) of the other group.

    Returns:
        As many angles as the smaller span has dimensions.
    """
    spans = Span.of(first), Span.of(second)
    weights, product = _orthonormalised(*spans)
    left, cosines, right = np.linalg.svd(product, full_matrices=False)
    angles: Array = np.arccos(np.clip(cosines, 0.0, 1.0))
    few = angles < _SMALL
    if few.any():
        ours = left[:, few].T @ weights[0] * cosines[few, None]
        theirs = right[few] @ weights[1]
        rest = [theirs @ spans[1].block(c) - ours @ spans[0].block(c) for c in _blocks(first)]
        sines = np.linalg.svd(np.concatenate(rest, axis=1), compute_uv=False)[::-1]
        angles[few] = np.arcsin(np.clip(sines, 0.0, 1.0))
    return angles


def _orthonormalised(first: Span, second: Span) -> tuple[tuple[Array, Array], Array]:
    """What makes both bases orthonormal, and the product of the orthonormal bases."""
    sizes = [len(span.weights) + len(span.extra) for span in (first, second)]
    grams = [np.zeros((a, b)) for a, b in ((sizes[0], sizes[1]), *((s, s) for s in sizes))]
    fine = max(first.error, second.error) <= _FINE
    if fine:
        vectors = np.zeros((len(first.vectors), len(second.vectors)))
        for c in _blocks(first.vectors):
            vectors += first.vectors[:, c].astype(np.float64) @ second.vectors[:, c].T
        return (np.eye(sizes[0]), np.eye(sizes[1])), first.weights @ vectors @ second.weights.T
    for c in _blocks(first.vectors):
        ours, theirs = first.block(c), second.block(c)
        for gram, (a, b) in zip(
            grams, ((ours, theirs), (ours, ours), (theirs, theirs)), strict=True
        ):
            gram += a @ b.T
    weights = [
        solve_triangular(np.linalg.cholesky(gram), np.eye(len(gram)), lower=True)
        for gram in grams[1:]
    ]
    return (weights[0], weights[1]), weights[0] @ grams[0] @ weights[1].T


def _blocks(vectors: Vectors) -> Iterator[slice]:
    """Ranges of elements that stay in the cache while they are used."""
    for start in range(0, vectors.shape[1], _BLOCK):
        yield slice(start, start + _BLOCK)
