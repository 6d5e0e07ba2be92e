"""Splits: no record and no user in two sets, values alike in all, and refusals that count."""

import numpy as np
import pytest

from gradaudit.errors import NotApplicable
from gradaudit.games.splits import expect_enough, split

SHARES = (0.5, 0.2, 0.3)


def test_every_record_is_in_one_set() -> None:
    parts = split(101, None, SHARES, 3)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(101))
    assert [len(part) for part in parts] == [50, 21, 30]


def test_no_user_is_in_two_sets() -> None:
    users = np.array([f"user {i % 17}" for i in range(200)])
    parts = split(200, users, SHARES, 0)
    names = [set(users[part]) for part in parts]
    assert sum(len(each) for each in names) == 17
    assert all(names)


def test_values_have_the_same_shares_everywhere() -> None:
    codes = (np.arange(1000) % 20 == 0).astype(np.int64)
    parts = split(1000, None, SHARES, 0, codes=codes)
    assert [int(codes[part].sum()) for part in parts] == [25, 10, 15]


def test_the_seed_decides() -> None:
    first, again, other = (split(50, None, SHARES, seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_there_are_as_many_sets_as_shares() -> None:
    parts = split(20, None, (1, 1, 1, 1, 1), 0)
    assert [len(part) for part in parts] == [4] * 5
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(20))


def test_a_share_may_be_nothing() -> None:
    parts = split(9, None, (2, 0, 1), 0)
    assert [len(part) for part in parts] == [6, 0, 3]


def test_too_few_records_of_a_value_are_refused_with_the_number_needed() -> None:
    codes = np.array([0] * 90 + [1] * 10)
    parts = split(100, None, SHARES, 0, codes=codes)
    sets = dict(zip(("the first", "the second", "the third"), parts, strict=True))
    with pytest.raises(
        NotApplicable, match=r"10 of .* 'b' of race, .* about 80 are needed, 16 .* the second has 2"
    ):
        expect_enough(sets, codes, ("a", "b"), 16, "race")
    expect_enough(sets, codes, ("a", "b"), 2, "race")


def test_a_set_without_a_record_is_named_too() -> None:
    sets = {"first": np.array([0, 1]), "second": np.array([], dtype=np.int64)}
    with pytest.raises(NotApplicable, match="1 in each set; second has 0"):
        expect_enough(sets, np.array([0, 1]), ("a", "b"), 1, "race")
