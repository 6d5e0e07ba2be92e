"""Records are split into sets before any batch is drawn.

Fresh batches of the same records share records, and make a random attribute look leaky.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import NotApplicable

IntArray = NDArray[np.int64]
Users = NDArray[np.str_]
Seed = int | np.random.SeedSequence


def split(
    records: int,
    users: Users | None,
    shares: tuple[float, ...],
    seed: Seed,
    *,
    codes: IntArray | None = None,
) -> tuple[IntArray, ...]:
    """Deal records, or users with all their records, to as many sets as there are shares.

    Args:
        records: how many there are.
        users: (records,) whose record each is.
        shares: of the records (or users) in each set; they are divided by their sum.
        seed: of the order.
        codes: (records,) values that shall have the same shares in every set. A user counts with
            the first of its records.
    """
    names = np.arange(records) if users is None else np.unique(users, return_inverse=True)[1]
    _, first = np.unique(names, return_index=True)
    strata = np.zeros(records, dtype=np.int64) if codes is None else codes
    order = np.random.default_rng(seed).permutation(len(first))
    order = order[np.argsort(strata[first][order], kind="stable")]
    places = np.empty(len(first), dtype=np.int64)
    for stratum in np.unique(strata[first]):
        members = order[strata[first][order] == stratum]
        places[members] = _places(len(members), shares)
    of_record = places[names]
    return tuple(
        np.flatnonzero(of_record == place).astype(np.int64) for place in range(len(shares))
    )


def _places(count: int, shares: tuple[float, ...]) -> IntArray:
    """Which set each of ``count`` shuffled members goes to."""
    ends = np.round(np.cumsum(shares) / np.sum(shares) * count)
    return np.searchsorted(ends, np.arange(count), side="right").astype(np.int64)


def expect_enough(
    parts: Mapping[str, IntArray],
    codes: IntArray,
    values: tuple[str, ...],
    fewest: int,
    what: str,
) -> None:
    """Insist on ``fewest`` records of every value in every set.

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
    raise NotApplicable(
        f"{what}: {held} of the records looked at have the value {values[rarest]!r}, which leaves "
        f"{counts[place, rarest]} in {list(parts)[place]}; {fewest} are needed in each "
        f"set, about {int(np.ceil(fewest / share))} in all: give more records (or users), or "
        "smaller batches"
    )
