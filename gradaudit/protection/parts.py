"""Records for the search, and others that a plan is verified on."""

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.records import Records
from gradaudit.errors import AuditError
from gradaudit.randomness import rng


def split_records(records: Records, rounds: int, seed: int) -> list[Records]:
    """Half of the records for the search, and as many equal parts of the others as asked for.

    No user is in two of them.

    Raises:
        AuditError: there are fewer records, or users, than parts.
    """
    owners = _owners(records)
    order = rng(seed, "protection", "parts").permutation(owners.max() + 1)
    if len(order) < 2 * (rounds + 1):
        raise AuditError(f"{len(order)} records or users are too few for a search and {rounds}")
    half = len(order) // 2
    groups = [order[:half], *np.array_split(order[half:], rounds)]
    return [records.take(np.flatnonzero(np.isin(owners, group))) for group in groups]


def half_of(records: Records, seed: int, number: int) -> Records:
    """Half of the records, drawn at random by users; another one for each number."""
    owners = _owners(records)
    order = rng(seed, "protection", "halves", number).permutation(owners.max() + 1)
    return records.take(np.flatnonzero(np.isin(owners, order[: len(order) // 2])))


def _owners(records: Records) -> NDArray[np.int64]:
    """Whose each record is, by number; each its own where there are no users."""
    if records.users is None:
        return np.arange(len(records))
    return np.unique(records.users, return_inverse=True)[1].astype(np.int64)
