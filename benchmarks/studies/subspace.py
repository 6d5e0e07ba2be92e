"""The permutation test of the subspace audit: its level without and with users, and its power."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from studies.base import Cell, Outcome, Study

from gradaudit.loading.records import Attribute, Records
from gradaudit.subspaces.comparing import Compared
from gradaudit.subspaces.samples import compare_samples
from gradaudit.subspaces.splits import splits_of

PERMUTATIONS = 99
LEVEL = 0.05
_SCALES = np.array([4.0, 3.0, 2.0, 1.5, 1.0, 0.7, 0.5, 0.3, 0.2, 0.1])
_SHIFTS = {"null": 0.0, "weak": 0.3, "strong": 1.0}
_USER = 1.5
"""Spread between users, in units of that between a user's records."""


def records_of(codes: NDArray[np.int64], users: NDArray[np.int64] | None) -> Records:
    """Records of which only the attribute and the users are looked at."""
    nothing = torch.zeros(len(codes), 1)
    attributes = {"a": Attribute(codes, ("no", "yes"))}
    named = None if users is None else users.astype(str)
    return Records(nothing, nothing[:, 0], attributes=attributes, users=named)


def play(
    seed: int, *, records: int, users: int, constant: bool, shift: float
) -> Mapping[str, Outcome]:
    """One test at 5 %, of gradients that lie in ten directions of different energy."""
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(records, len(_SCALES)))
    owner = None
    codes = generator.permutation(records) % 2
    if users:
        owner = np.sort(np.append(np.arange(users), generator.integers(0, users, records - users)))
        vectors += _USER * generator.normal(size=(users, len(_SCALES)))[owner]
        if constant:
            codes = (generator.permutation(users) % 2)[owner]
    vectors *= _SCALES
    vectors[:, 7] += shift * _SCALES[1] * codes * generator.normal(size=records)
    (split,) = splits_of(records_of(codes, owner), ["a"], PERMUTATIONS, seed)
    found = compare_samples(vectors, [split], 1 << 26)[0]
    assert isinstance(found, Compared)
    p_value = found.p_value("grassmann")
    reached = p_value <= LEVEL
    if shift:
        return {f"p ≤ {LEVEL}": Outcome(reached)}
    return {f"p > {LEVEL}": Outcome(not reached), "p > 0.5": Outcome(p_value > 0.5)}
