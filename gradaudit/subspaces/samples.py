"""Reading ``samples``: what the gradients of a group's records span.

A group's subspace is that of its k leading principal directions, uncentred, with k the directions
that hold 95 % of the energy of both groups together. Everything happens in the records' joint
coordinates, so a permutation costs the same however many elements a gradient has.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.errors import GradauditError, NotApplicable
from gradaudit.subspaces.angles import principal_angles, quick_angles
from gradaudit.subspaces.bases import (
    directions_holding,
    leading_directions,
    negligible,
    principal_coordinates,
)
from gradaudit.subspaces.comparing import Compared, distances
from gradaudit.subspaces.splits import Orders, Split

Array = NDArray[np.float64]

ENERGY = 0.95
_AT_ONCE = 64
_ROUGHLY = 1e-6


def compare_samples(
    vectors: Array, splits: Sequence[Split], memory: int
) -> dict[int, Compared | GradauditError]:
    """Compare the groups of every split, by its number.

    Args:
        vectors: the records' gradients by one layer, (records, elements), or their coordinates in
            a joint orthonormal basis.
        splits: those whose groups are large enough.
        memory: bytes that the bases under some permutations may take.

    Raises:
        NotApplicable: the gradients are zero.
    """
    coordinates = principal_coordinates(vectors)
    energies = np.square(coordinates).sum(axis=0)
    if not len(energies):
        raise NotApplicable("the gradients of all records looked at are zero")
    found: dict[int, Compared | GradauditError] = {}
    for number, split in enumerate(splits):
        try:
            found[number] = _compare(coordinates, energies, split, memory)
        except NotApplicable as why:
            found[number] = why
    return found


def _compare(coordinates: Array, energies: Array, split: Split, memory: int) -> Compared:
    """Compare a split's groups.

    The number of directions is the same for every labelling: that of the pooled energy, or the
    records of the smallest group that there is under any of them.

    Raises:
        NotApplicable: all labellings give the same distance.
    """
    holding = directions_holding(ENERGY, energies)
    k = min(holding, split.smallest)
    floor = negligible(coordinates.shape) * float(np.sqrt(energies[0]))
    inside, outside = (
        leading_directions(coordinates[rows], k, floor) for rows in (split.member, ~split.member)
    )
    angles = principal_angles(inside, outside)
    permuted = [
        distances(_angles(coordinates, split.member[some], k, floor))
        for some in _portions(split.orders, coordinates.size, memory)
    ]
    together = {name: np.concatenate([each[name] for each in permuted]) for name in permuted[0]}
    share = float(energies[:k].sum() / energies.sum())
    facts: dict[str, JsonValue] = {
        "k": k,
        "dimensions": len(energies),
        "energy_share": share,
        "k_for_95_percent": holding,
    }
    compared = Compared(angles, together, facts)
    compared.expect_different()
    return compared


def _angles(coordinates: Array, members: NDArray[np.bool_], k: int, floor: float) -> Array:
    """Angles (labellings, k) between the groups of each labelling (labellings, records)."""
    padded = np.pad(coordinates, ((0, 1), (0, 0)))
    bases = [
        leading_directions(padded[_indices(rows)], k, floor, reliable=_ROUGHLY)
        for rows in (members, ~members)
    ]
    return quick_angles(bases[0], bases[1])


def _indices(members: NDArray[np.bool_]) -> Orders:
    """The members of each labelling, (labellings, most members), filled up with a row past all."""
    sizes = members.sum(axis=1)
    found = np.full((len(members), sizes.max()), members.shape[1])
    found[np.arange(sizes.max()) < sizes[:, None]] = np.nonzero(members)[1]
    return found


def _portions(orders: Orders, size: int, memory: int) -> Iterator[Orders]:
    """The permutations, as many at once as their groups' coordinates, bases and products fit."""
    step = max(1, min(_AT_ONCE, memory // (8 * 4 * size)))
    for start in range(0, len(orders), step):
        yield orders[start : start + step]
