"""Bases of groups of gradients, principal angles between them, and both under permutation.

Å. Björck and G. H. Golub, "Numerical methods for computing angles between linear subspaces" (1973):
cosines are the singular values of Q₀ᵀQ₁, sines those of (I − Q₀Q₀ᵀ)Q₁. A cosine tells nothing of an
angle below 1e-8 and a sine nothing of one near a right angle, so each is used where it is exact.

Joint coordinates of many vectors, and orthonormal bases of what some of them span.

All angles between subspaces that n vectors span are in the vectors' coordinates in a joint
orthonormal basis, at most n numbers each, however many elements the vectors have. They are the
triangle of a QR decomposition, taken block by block of elements (J. Demmel et al.,
"Communication-optimal parallel and sequential QR and LU factorizations", 2012), which keeps the
small singular values that a Gram matrix would square away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue

from gradaudit.core.statistics.laws import permutation_p_value, student_quantile
from gradaudit.errors import NotApplicable

Array = NDArray[np.float64]
Range = tuple[float, float]
_SLAB = 1 << 18
"""Numbers that are decomposed at a time: some MiB, which LAPACK copies."""
_MODERATE = 1e-7
"""Smallest eigenvalue of a Gram matrix over the largest, from which coordinates are exact to 1e-9.
The vectors are then so far from depending on each other that no angle between two groups of them
is below 1e-4."""
DISTANCES: Mapping[str, Callable[[Array], Array]] = {
    "grassmann": lambda angles: np.sqrt(np.square(angles).sum(axis=-1)),
    "asimov": lambda angles: angles.max(axis=-1, initial=0.0),
    "chordal": lambda angles: np.sqrt(np.square(np.sin(angles)).sum(axis=-1)),
    "procrustes": lambda angles: 2 * np.sqrt(np.square(np.sin(angles / 2)).sum(axis=-1)),
}
"""Distances of principal angles (…, k) in radians: Ye and Lim, "Schubert varieties and distances
between subspaces of different dimensions" (2016), table 2."""
_SMALL = 1e-2
"""Angles below this are taken from their sines; others are exact to 1e-14 by their cosines."""
_FEWEST_HALVES = 8
_ORTHONORMAL = 1e-6
STATISTIC = "grassmann"
"""The distance that the permutation test orders by."""
_TIES = 1e-6
"""Permuted distances as near as this count as reaching the observed one: they are quick ones."""


def joint_triangle(triangle: Array | None, block: Array) -> Array:
    """Update the triangular coordinates of a matrix's rows with more of its columns.

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
    """Compute the rows' coordinates in their principal directions, uncentred.

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
    """Count how many of the largest energies (descending) make up this share of their sum."""
    held = np.cumsum(energies)
    return int(np.searchsorted(held, share * held[-1] * (1 - 1e-12))) + 1


def leading_directions(
    matrices: Array, k: int, floor: float = 0.0, *, reliable: float = 1e-3
) -> Array:
    """Compute orthonormal bases of each matrix's k leading right singular directions.

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
    """Compute bases (…, d, k) by the smaller Gram matrix, and their energies (…, k)."""
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
    """Count the singular values above rounding error and ``floor``."""
    values = np.linalg.svd(matrix, compute_uv=False)
    least = max(floor, negligible(matrix.shape) * values.max(initial=0.0))
    return int((values > least).sum())


def negligible(shape: tuple[int, ...]) -> float:
    """Singular values up to this share of the largest are rounding error, as NumPy's rank has it.

    >>> negligible((4, 1000)) == 1000 * 2.0**-52
    True
    """
    return float(max(shape) * np.finfo(np.float64).eps)


def principal_angles(first: Array, second: Array) -> Array:
    """Compute principal angles between the column spaces of orthonormal bases, ascending.

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
    """Compute principal angles of many pairs of bases, (…, dimensions, k), to within 1e-7."""
    cosines = np.linalg.svd(np.swapaxes(first, -1, -2) @ second, compute_uv=False)
    return np.asarray(np.arccos(np.clip(cosines, 0.0, 1.0)))


class SubspaceDistances(NamedTuple):
    """Principal angles (k,) in radians, ascending, and the distances that they make."""

    angles: Array
    grassmann: float
    asimov: float
    chordal: float
    procrustes: float


def subspace_distances(first: ArrayLike, second: ArrayLike) -> SubspaceDistances:
    """Compute the distances between two subspaces by their principal angles.

    √Σθ², max θ, √Σ sin²θ and 2√Σ sin²(θ/2) of the angles θ, whose cosines are the singular values
    of Q₀ᵀQ₁ (Mo et al. 2022, eq. 9–10; Ye and Lim 2016, table 2).

    >>> plane, line = np.eye(3)[:, :1], np.array([[np.sqrt(3)], [1], [0]]) / 2
    >>> round(subspace_distances(plane, line).grassmann / np.pi, 6)
    0.166667

    Args:
        first: Q₀, (dimensions, k), orthonormal columns; a column of zeros stands for a direction
            that the subspace lacks.
        second: Q₁, the same of the other subspace.

    Raises:
        ValueError: columns are not orthonormal.
    """
    bases = np.asarray(first, float), np.asarray(second, float)
    for basis in bases:
        gram = basis.T @ basis
        wanted = np.diag(np.round(np.minimum(gram.diagonal(), 1)))
        if np.abs(gram - wanted).max(initial=0.0) > _ORTHONORMAL:
            raise ValueError("subspace_distances needs orthonormal columns: use numpy.linalg.qr")
    angles = principal_angles(*bases)
    return SubspaceDistances(angles, **{n: float(d) for n, d in distances(angles).items()})


@dataclass(frozen=True)
class PrincipalAngles:
    """Principal angles between the subspaces of two groups.

    Attributes:
        observed: their angles and distances.
        permuted: each distance between groups of permuted labels, (permutations,).
        facts: what the rows say of how the subspaces were made.
        halved: each distance of half samples, (half samples, 2): between the groups, and between
            groups of permuted labels.
    """

    observed: SubspaceDistances
    permuted: Mapping[str, Array]
    facts: dict[str, JsonValue] = field(default_factory=dict)
    halved: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def unless_alike(
        cls,
        observed: SubspaceDistances,
        permuted: Sequence[Mapping[str, Array]],
        facts: dict[str, JsonValue],
        halved: Mapping[str, Array] = MappingProxyType({}),
    ) -> PrincipalAngles | NotApplicable:
        """Join the permuted distances, or say why all groupings are equally far apart."""
        together = {name: np.concatenate([part[name] for part in permuted]) for name in permuted[0]}
        compared = cls(observed, together, facts, halved)
        try:
            compared.expect_different()
        except NotApplicable as why:
            return why
        return compared

    def distance(self, name: str) -> float:
        """Compute one of the distances of the observed groups."""
        return float(getattr(self.observed, name))

    def known_to(self, name: str, value: float, *, permuted: bool = False) -> Range | None:
        """Span a distance by its relative spread over half samples; None for too few of them.

        Half samples vary about their mean as samples do about theirs (J. Shao and C. F. J. Wu, "A
        general theory for jackknife variance estimation", 1989), and lie apart by as much more as
        they are smaller.
        """
        values = self.halved.get(name, np.zeros((0, 2)))[:, int(permuted)]
        if len(values) < _FEWEST_HALVES or not values.mean():
            return None
        spread = float(values.std(ddof=1) / values.mean())
        margin = student_quantile(len(values) - 1) * spread * value
        return max(value - margin, 0.0), value + margin

    def among(self, name: str) -> Array:
        """Return the observed distance and the permuted ones, with ties equal to the observed."""
        observed = self.distance(name)
        permuted = self.permuted[name]
        tied = np.abs(permuted - observed) <= _TIES * (1 + observed)
        return np.concatenate([[observed], np.where(tied, observed, permuted)])

    def expect_different(self) -> None:
        """Raise where all groupings lie equally far apart, so that a test has nothing to order.

        Raises:
            NotApplicable: with the distance.
        """
        distances = self.among(STATISTIC)
        if np.ptp(distances) > 0:
            return
        k, dimensions = self.facts["k"], self.facts["dimensions"]
        if distances[0] > _TIES:
            raise NotApplicable(
                f"the {k} directions of any two groups of these records, drawn at random or not, "
                f"are {distances[0]:.3g} rad apart: nothing distinguishes them"
            )
        raise NotApplicable(
            f"any two groups of these records, drawn at random or not, span the same {k} of "
            f"{dimensions} dimensions: the subspaces cannot differ"
        )

    def p_value(self, name: str) -> float:
        """Compute (1 + b) / (1 + N), with b labellings of at least the observed distance."""
        distances = self.among(name)
        return permutation_p_value(distances[0], distances[1:])


def distances(angles: Array) -> dict[str, Array]:
    """Compute all distances of principal angles (…, k), each (…,)."""
    return {name: of(angles) for name, of in DISTANCES.items()}


@dataclass(frozen=True)
class ComparisonFamily:
    """Comparisons whose p-values are corrected for each other, of one layer or several.

    Each distance is put in standard deviations of its own permutations; a comparison's is compared
    with the largest of all under every permutation, which all comparisons share, so that one of
    many does not stand out by luck (P. H. Westfall and S. S. Young, "Resampling-based multiple
    testing", 1993, single-step maxT).

    Attributes:
        most: the largest standardised distance under every labelling, (1 + permutations,), by the
            distance's name.
    """

    most: Mapping[str, Array]

    @classmethod
    def of(cls, compared: Iterable[PrincipalAngles]) -> ComparisonFamily:
        """Make the family of at least one comparison."""
        most: dict[str, Array] = {}
        for comparison, name in product(compared, DISTANCES):
            scores = _standardised(comparison.among(name))
            most[name] = np.maximum(most[name], scores) if name in most else scores
        return cls(most)

    def p_values(self, compared: PrincipalAngles) -> dict[str, float]:
        """Compute a member's p-values by distance, corrected for the other comparisons."""
        values = {}
        for name, most in self.most.items():
            observed = _standardised(compared.among(name))[0]
            values[name] = permutation_p_value(observed, most[1:])
        return values


def most_significant(compared: Sequence[PrincipalAngles]) -> int:
    """Find the comparison whose Grassmann distance is most significant."""
    return int(
        np.argmax([_standardised(comparison.among(STATISTIC))[0] for comparison in compared])
    )


def _standardised(values: Array) -> Array:
    """Standardise values by their mean and deviation; zeros where all are equal."""
    if np.ptp(values) == 0:  # their standard deviation may be a rounding error
        return np.zeros_like(values)
    return np.asarray((values - values.mean()) / values.std())
