"""Shadow batches: k records that share one value of the attribute (Li et al. 2024, section 4.1)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


class Batches(NamedTuple):
    """Batches of records.

    Attributes:
        indices: (batches, size) int64, indices of records; none twice in a batch.
        labels: (batches,) int64, the value that the batch's records have.
    """

    indices: IntArray
    labels: IntArray


def draw_batches(
    codes: IntArray,
    pool: IntArray,
    size: int,
    count: int,
    generator: np.random.Generator,
    *,
    values: int | None = None,
) -> Batches:
    """Draw ``count`` batches of every value from a pool of records.

    A record may be in many batches, but once in each. Labels go round (0, 1, …, 0, 1, …), so every
    stretch of batches is balanced.

    Args:
        codes: (records,) value of every record, in 0..values-1.
        pool: indices of the records to draw from.
        size: records in a batch, k.
        count: batches of each value.
        generator: of the draws.
        values: how many values there are; without it, as many as ``codes`` has.

    Raises:
        ValueError: a value has fewer than ``size`` records in the pool (see ``expect_enough``).
    """
    wanted = int(codes.max()) + 1 if values is None else values
    drawn = np.stack(
        [_subsets(pool[codes[pool] == value], size, count, generator) for value in range(wanted)],
        axis=1,
    )
    labels = np.tile(np.arange(wanted, dtype=np.int64), count)
    return Batches(drawn.reshape(count * wanted, size), labels)


def draw_any(pool: IntArray, size: int, count: int, generator: np.random.Generator) -> IntArray:
    """``count`` batches (count, size) of any records of the pool, none twice in a batch."""
    return _subsets(pool, size, count, generator)


def _subsets(members: IntArray, size: int, count: int, generator: np.random.Generator) -> IntArray:
    """``count`` random subsets, by Floyd's algorithm over all of them at once."""
    if len(members) < size:
        raise ValueError(f"{len(members)} records do not make a batch of {size}")
    chosen = np.empty((count, size), dtype=np.int64)
    for place, top in enumerate(range(len(members) - size, len(members))):
        drawn = generator.integers(0, top + 1, count)
        taken = (chosen[:, :place] == drawn[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, top, drawn)
    return members[chosen]
