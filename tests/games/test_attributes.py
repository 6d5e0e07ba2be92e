"""Merging rare values, and dealing values out anew."""

import numpy as np
import pytest

from gradaudit.data.records import Attribute, merge_rare
from gradaudit.games.splits import shuffled


def of(*counts: int) -> Attribute:
    codes = np.repeat(np.arange(len(counts)), counts)
    return Attribute(codes, tuple("abcdef"[: len(counts)]))


@pytest.mark.parametrize(
    ("counts", "fewest", "values", "merged"),
    [
        ((50, 30, 3, 2), 5, ("a", "b", "other"), ("c", "d")),
        ((50, 30, 3, 1), 5, ("a", "other"), ("b", "c", "d")),
        ((50, 30), 0, ("a", "b"), ()),
        ((50, 0, 30), 0, ("a", "c"), ()),
        ((50, 30, 6), 5, ("a", "b", "c"), ()),
        ((2, 2), 5, ("other",), ("a", "b")),
    ],
)
def test_rare_values_are_merged(
    counts: tuple[int, ...], fewest: int, values: tuple[str, ...], merged: tuple[str, ...]
) -> None:
    found, names = merge_rare(of(*counts), fewest)
    assert (found.values, names) == (values, merged)
    assert np.bincount(found.codes).sum() == sum(counts)
    assert len(np.unique(found.codes)) == len(values)


def test_a_value_called_other_is_not_mixed_up_with_the_merged_ones() -> None:
    attribute = Attribute(np.repeat(np.arange(3), (40, 2, 3)), ("other", "x", "y"))
    assert merge_rare(attribute, 4)[0].values == ("other", "other values")


def test_shuffling_keeps_the_codes_and_what_users_have_in_common() -> None:
    codes, rng = np.repeat([0, 1], 50), np.random.default_rng(0)
    assert sorted(shuffled(codes, None, rng)) == sorted(codes)
    users = np.repeat([f"u{i}" for i in range(10)], 10)
    found = shuffled(codes, users, rng)
    for user in np.unique(users):
        assert len(np.unique(found[users == user])) == 1
    assert (found != codes).any()
    assert found.sum() == codes.sum()
