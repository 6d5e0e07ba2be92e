"""What a comparison of two groups found, and how it stands among permuted ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.errors import NotApplicable
from gradaudit.subspaces.angles import DISTANCES

Array = NDArray[np.float64]

STATISTIC = "grassmann"
"""The distance that the permutation test orders by."""
_TIES = 1e-6
"""Permuted distances as near as this count as reaching the observed one: they are quick ones."""


@dataclass(frozen=True)
class Compared:
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
        return _reaching(self.among(name))


def distances(angles: Array) -> dict[str, Array]:
    """All distances of principal angles (…, k), each (…,)."""
    return {name: of(angles) for name, of in DISTANCES.items()}


def most_significant(compared: Sequence[Compared]) -> tuple[int, dict[str, float]]:
    """Which of several comparisons stands out most, and the p-values of its doing so by chance.

    Each distance is put in standard deviations of its own permutations; the largest over the
    comparisons is compared with the largest under every permutation, which all comparisons share
    (P. H. Westfall and S. S. Young, "Resampling-based multiple testing", 1993).

    Returns:
        The index of the comparison whose Grassmann distance stands out most, and a p-value for
        each distance, corrected for the number of comparisons.
    """
    p_values = {}
    best = 0
    for name in DISTANCES:
        scores = np.stack([_standardised(each.among(name)) for each in compared])
        p_values[name] = _reaching(scores.max(axis=0))
        if name == STATISTIC:
            best = int(scores[:, 0].argmax())
    return best, p_values


def _reaching(values: Array) -> float:
    return float((values >= values[0]).mean())


def _standardised(values: Array) -> Array:
    """In standard deviations from the mean; zeros where all are equal."""
    if np.ptp(values) == 0:  # their standard deviation may be a rounding error
        return np.zeros_like(values)
    found: Array = (values - values.mean()) / values.std()
    return found
