"""Batches share a value, hold no record twice, and are drawn fairly."""

import numpy as np
import pytest

from gradaudit.games.splits import draw_any, draw_batches


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


def test_a_batch_may_take_the_whole_pool() -> None:
    drawn = draw_any(np.array([4, 8, 9]), 3, 5, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.tile([4, 8, 9], (5, 1)))


def test_too_small_a_pool_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 records do not make a batch of 3"):
        draw_any(np.arange(2), 3, 1, np.random.default_rng(0))
