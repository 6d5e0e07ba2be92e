"""Splits of records, batches drawn of them fairly, and attributes merged and dealt out anew."""

import numpy as np
import pytest

from gradaudit.data.records import Attribute, merge_rare
from gradaudit.errors import NotApplicable
from gradaudit.games.splits import draw_any, draw_batches, expect_enough, shuffled, split

SHARES = (0.5, 0.2, 0.3)


@pytest.mark.parametrize(
    ("records", "shares", "sizes"),
    [(101, SHARES, [50, 21, 30]), (20, (1,) * 5, [4] * 5), (9, (2, 0, 1), [6, 0, 3])],
)
def test_every_record_is_in_one_set(
    records: int, shares: tuple[float, ...], sizes: list[int]
) -> None:
    parts = split(records, None, shares, 3)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(records))
    assert [len(part) for part in parts] == sizes


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


def test_too_few_records_of_a_value_are_refused_with_the_number_needed() -> None:
    codes = np.array([0] * 90 + [1] * 10)
    parts = split(100, None, SHARES, 0, codes=codes)
    sets = dict(zip(("the first", "the second", "the third"), parts, strict=True))
    with pytest.raises(
        NotApplicable, match=r"10 of .* 'b' of race, .* about 80 are needed, 16 .* the second has 2"
    ):
        expect_enough(sets, codes, ("a", "b"), 16, "race")
    expect_enough(sets, codes, ("a", "b"), 2, "race")
    sets = {"first": np.array([0, 1]), "second": np.array([], dtype=np.int64)}
    with pytest.raises(NotApplicable, match="1 in each set; second has 0"):
        expect_enough(sets, np.array([0, 1]), ("a", "b"), 1, "race")


def test_a_batch_has_one_value_and_no_record_twice() -> None:
    codes = np.arange(90) % 3
    pool = np.arange(20, 80)
    batches = draw_batches(codes, pool, 7, 50, np.random.default_rng(0))
    assert batches.indices.shape == (150, 7)
    np.testing.assert_array_equal(codes[batches.indices], np.repeat(batches.labels[:, None], 7, 1))
    np.testing.assert_array_equal(batches.labels[:6], [0, 1, 2, 0, 1, 2])
    assert set(batches.indices.ravel()) == set(pool)
    assert all(len(set(batch)) == 7 for batch in batches.indices)


def test_every_pair_of_records_is_as_likely() -> None:
    drawn = np.sort(draw_any(np.arange(5), 2, 20_000, np.random.default_rng(0)), axis=1)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 10
    np.testing.assert_allclose(counts, 2000, atol=5 * np.sqrt(2000))


def test_a_batch_may_take_the_whole_pool_and_no_more() -> None:
    drawn = draw_any(np.array([4, 8, 9]), 3, 5, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.tile([4, 8, 9], (5, 1)))
    with pytest.raises(ValueError, match="2 records do not make a batch of 3"):
        draw_any(np.arange(2), 3, 1, np.random.default_rng(0))


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
    uneven, varied = np.repeat(["a", "b", "c"], (5, 20, 75)), codes[rng.permutation(100)]
    assert sorted(shuffled(varied, uneven, rng)) == sorted(varied)
