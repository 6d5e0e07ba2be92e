"""Principal angles between the subspaces of two groups, and how they stand among permuted ones.

Å. Björck and G. H. Golub, "Numerical methods for computing angles between linear subspaces" (1973):
cosines are the singular values of Q₀ᵀQ₁, sines those of (I − Q₀Q₀ᵀ)Q₁. A cosine tells nothing of an
angle below 1e-8 and a sine nothing of one near a right angle, so each is used where it is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.errors import NotApplicable

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
STATISTIC = "grassmann"
"""The distance that the permutation test orders by."""
_TIES = 1e-6
"""Permuted distances as near as this count as reaching the observed one: they are quick ones."""


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
    return np.asarray(np.arccos(np.clip(cosines, 0.0, 1.0)))


@dataclass(frozen=True)
class PrincipalAngles:
    """Principal angles between the subspaces of two groups.

    Attributes:
        angles: (k,), ascending, in radians.
        permuted: each distance between groups of permuted labels, (permutations,).
        facts: what the rows say of how the subspaces were made.
    """

    angles: Array
    permuted: Mapping[str, Array]
    facts: dict[str, JsonValue] = field(default_factory=dict)

    def distance(self, name: str) -> float:
        """One of the distances of the observed groups."""
        return float(DISTANCES[name](self.angles))

    def among(self, name: str) -> Array:
        """The observed distance followed by the permuted ones, ties raised to the observed."""
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
                f"are {distances[0]:.3g} rad apart: nothing tells them apart"
            )
        raise NotApplicable(
            f"any two groups of these records, drawn at random or not, span the same {k} of "
            f"{dimensions} dimensions: the subspaces cannot differ"
        )

    def p_value(self, name: str) -> float:
        """Share of labellings with at least the observed distance: (1 + b) / (1 + N)."""
        distances = self.among(name)
        return float((distances >= distances[0]).mean())


def distances(angles: Array) -> dict[str, Array]:
    """All distances of principal angles (…, k), each (…,)."""
    return {name: of(angles) for name, of in DISTANCES.items()}


@dataclass(frozen=True)
class ComparisonFamily:
    """Comparisons that are looked at together, of one layer or of several.

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
        """The family of these comparisons, at least one."""
        most: dict[str, Array] = {}
        for comparison, name in product(compared, DISTANCES):
            scores = _standardised(comparison.among(name))
            most[name] = np.maximum(most[name], scores) if name in most else scores
        return cls(most)

    def p_values(self, compared: PrincipalAngles) -> dict[str, float]:
        """By the distance's name, the p-value of a member, corrected for the others."""
        values = {}
        for name, most in self.most.items():
            observed = _standardised(compared.among(name))[0]
            values[name] = (1 + int((most[1:] >= observed).sum())) / len(most)
        return values


def most_significant(compared: Sequence[PrincipalAngles]) -> int:
    """The index of the comparison whose Grassmann distance stands out most."""
    return int(
        np.argmax([_standardised(comparison.among(STATISTIC))[0] for comparison in compared])
    )


def _standardised(values: Array) -> Array:
    """In standard deviations from the mean; zeros where all are equal."""
    if np.ptp(values) == 0:  # their standard deviation may be a rounding error
        return np.zeros_like(values)
    return np.asarray((values - values.mean()) / values.std())
