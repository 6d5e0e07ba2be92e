"""Whose records other clients have."""

import numpy as np
import pytest

from gradaudit.sharing.draws import draws_of_others, with_others

POOL = np.arange(3, 30, 3)


def test_others_draw_evenly_of_the_pool_outside_their_own_batch() -> None:
    batches = np.tile(np.array([[27, 3, 12]]), (3000, 1))
    drawn = draws_of_others(batches, 2, POOL, np.random.default_rng(0))
    assert drawn.shape == (3000, 2, 3)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [6, 9, 15, 18, 21, 24]
    assert np.abs(counts / 3000 - 1).max() < 0.1


def test_every_batch_is_left_out_of_its_own_others_alone() -> None:
    generator = np.random.default_rng(1)
    batches = np.stack([generator.choice(POOL, 8, replace=False) for _ in range(50)])
    drawn = draws_of_others(batches, 3, POOL, generator)
    for batch, others in zip(batches, drawn, strict=True):
        assert set(others.ravel()) == set(POOL) - set(batch)


def test_what_others_drew_already_is_taken_as_it_is() -> None:
    batches, drawn = np.array([[0, 1], [2, 3]]), np.arange(4, 12).reshape(2, 2, 2)
    clients = with_others(batches, 12, 2, drawn, 0)
    assert clients[:, 0].tolist() == batches.tolist()
    assert clients[:, 1:].tolist() == drawn.tolist()
    with pytest.raises(ValueError, match="shape"):
        with_others(batches, 12, 3, drawn, 0)
