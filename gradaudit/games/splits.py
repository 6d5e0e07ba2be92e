"""Records split into sets, batches of one value drawn of a set, and attributes dealt out anew.

Records are split before any batch is drawn: fresh batches of the same records share records, and
make a random attribute look leaky. A shadow batch is k records that share one value of the
attribute (Li et al. 2024, section 4.1). No torch in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradaudit.core.randomness import Seed
from gradaudit.errors import TooFewRecords

IntArray = NDArray[np.int64]
Users = NDArray[np.str_]


def split(
    records: int,
    users: Users | None,
    shares: tuple[float, ...],
    seed: Seed,
    *,
    codes: IntArray | None = None,
) -> tuple[IntArray, ...]:
    """Deals records, or users with all their records, to as many sets as there are shares.

    Args:
        records: how many there are.
        users: (records,) whose record each is.
        shares: of the records (or users) in each set; they are divided by their sum.
        seed: of the order.
        codes: (records,) values that shall have the same shares in every set. A user counts with
            the first of its records.
    """
    names = owners(users, records)
    _, first = np.unique(names, return_index=True)
    strata = np.zeros(records, dtype=np.int64) if codes is None else codes
    order = np.random.default_rng(seed).permutation(len(first))
    order = order[np.argsort(strata[first][order], kind="stable")]
    places = np.empty(len(first), dtype=np.int64)
    for stratum in np.unique(strata[first]):
        members = order[strata[first][order] == stratum]
        ends = np.round(np.cumsum(shares) / np.sum(shares) * len(members))
        places[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    of_record = places[names]
    return tuple(
        np.flatnonzero(of_record == place).astype(np.int64) for place in range(len(shares))
    )


def owners(users: Users | None, records: int) -> IntArray:
    """Returns a number for every record's owner, (records,): its user, or itself without users."""
    if users is None:
        return np.arange(records)
    return np.unique(users, return_inverse=True)[1].astype(np.int64)


def expect_enough(
    parts: Mapping[str, IntArray], codes: IntArray, values: tuple[str, ...], fewest: int, what: str
) -> None:
    """Raise an error where a set has fewer than ``fewest`` records of a value.

    Args:
        parts: the sets by name.
        codes: (records,) indices into ``values``.
        values: names of the attribute's values.
        fewest: the number needed, such as the batch size.
        what: the attribute, for the message.

    Raises:
        NotApplicable: some set has fewer, with about how many records would do.
    """
    counts = np.stack([np.bincount(codes[part], minlength=len(values)) for part in parts.values()])
    if counts.min() >= fewest:
        return
    rarest = int(counts.min(axis=0).argmin())
    place = int(counts[:, rarest].argmin())
    held = int((codes == rarest).sum())
    share = max(1, min(len(part) for part in parts.values())) / len(codes)
    raise TooFewRecords(
        f"{held} of the records looked at have the value {values[rarest]!r} of {what}, and about "
        f"{int(np.ceil(fewest / share))} are needed, {fewest} in each set; {list(parts)[place]} "
        f"has {counts[place, rarest]}: give more records (or users), or smaller batches"
    )


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
    """Draws ``count`` batches of every value from a pool of records.

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
        [draw_any(pool[codes[pool] == value], size, count, generator) for value in range(wanted)],
        axis=1,
    )
    labels = np.tile(np.arange(wanted, dtype=np.int64), count)
    return Batches(drawn.reshape(count * wanted, size), labels)


def draw_any(members: IntArray, size: int, count: int, generator: np.random.Generator) -> IntArray:
    """Draw ``count`` batches (count, size) of these records, none twice in a batch.

    By Floyd's algorithm over all of them at once.
    """
    if len(members) < size:
        raise ValueError(f"{len(members)} records do not make a batch of {size}")
    chosen = np.empty((count, size), dtype=np.int64)
    for place, top in enumerate(range(len(members) - size, len(members))):
        drawn = generator.integers(0, top + 1, count)
        taken = (chosen[:, :place] == drawn[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, top, drawn)
    return members[chosen]


def shuffled(
    codes: IntArray, users: NDArray[np.str_] | None, generator: np.random.Generator
) -> IntArray:
    """Permute codes (records,) among the records, or among users, who keep their records.

    Permuted records would hide that users alone, whatever their value, make an attribute look
    leaky. Where every user has one value, users swap values. Where values vary within users, the
    records of all users in one random order take the values of all in another: runs of values that
    belonged to one user go on belonging to one, as far as users have equally many records.
    """
    if users is None:
        return generator.permutation(codes)
    _, first, user = np.unique(users, return_index=True, return_inverse=True)
    of_users = codes[first]
    if (of_users[user] == codes).all():
        return np.asarray(generator.permutation(of_users)[user])
    giving, taking = (
        np.lexsort((generator.random(len(user)), generator.permutation(len(first))[user]))
        for _ in range(2)
    )
    dealt = np.empty_like(codes)
    dealt[taking] = codes[giving]
    return dealt
