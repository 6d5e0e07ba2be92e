"""Attributes dealt out anew, and with rare values merged."""

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.records import Attribute

IntArray = NDArray[np.int64]
OTHER = "other"


def merge_rare(attribute: Attribute, fewest: int) -> tuple[Attribute, tuple[str, ...]]:
    """The attribute with its rare values merged into one called ``other``.

    Values of fewer than ``fewest`` records are merged, and with them the rarest of the rest while
    all merged ones together are fewer. A value that would be alone stays as it is.

    Args:
        attribute: whose values may occur nowhere.
        fewest: records that a value must have to stand by itself; 0 merges none.

    Returns:
        The attribute, with only values that occur, and the names of those that were merged.
    """
    counts = np.bincount(attribute.codes, minlength=len(attribute.values))
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    rare = int((counts[order] < fewest).sum())
    while 0 < rare < len(order) and counts[order[:rare]].sum() < fewest:
        rare += 1
    merged = np.sort(order[:rare]) if rare > 1 else order[:0]
    kept = np.setdiff1d(order, merged)
    names = [attribute.values[code] for code in kept]
    places = np.full(len(attribute.values), len(names))
    places[kept] = np.arange(len(names))
    if len(merged):
        names.append(OTHER if OTHER not in names else f"{OTHER} values")
    codes = places[attribute.codes].astype(np.int64)
    return Attribute(codes, tuple(names)), tuple(attribute.values[code] for code in merged)


def shuffled(
    codes: IntArray, users: NDArray[np.str_] | None, generator: np.random.Generator
) -> IntArray:
    """Codes (records,) dealt out anew: to other records, or to other users where there are any.

    What a user's records have in common stays in common: every user gets the codes of another,
    repeated or cut to the number of its records. Permuted records would hide that users alone,
    whatever their value, make an attribute look leaky.
    """
    if users is None:
        return generator.permutation(codes)
    names = np.unique(users, return_inverse=True)[1]
    rows = np.split(np.argsort(names, kind="stable"), np.cumsum(np.bincount(names))[:-1])
    found = np.empty_like(codes)
    for own, donor in zip(rows, generator.permutation(len(rows)), strict=True):
        found[own] = np.resize(generator.permutation(codes[rows[donor]]), len(own))
    return found
