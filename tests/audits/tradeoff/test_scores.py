"""CAP, its interval and the axis, by hand and against simulations."""

import math

import numpy as np
import pytest
from scipy.stats import t

from gradaudit.audits.tradeoff.attacking import cap, cap_interval, clipped, mean_interval, position
from gradaudit.core.statistics.intervals import wilson


def test_cap_by_hand() -> None:
    accuracies = np.array([[0.9, 0.5]])
    distances = np.array([[[0.1, 0.3], [1.0, 0.6]]])
    assert cap(accuracies, distances) == pytest.approx((0.9 * 0.2 + 0.5 * 0.8) / 2)


def test_cap_averages_repetitions() -> None:
    accuracies = np.array([[0.9], [0.7]])
    distances = np.array([[[0.2]], [[0.4]]])
    assert cap(accuracies, distances) == pytest.approx((0.9 * 0.2 + 0.7 * 0.4) / 2)


def test_no_answer_is_worse_than_a_blank_record() -> None:
    errors = np.array([0.2, 1.0, 3.0, np.nan, np.inf])
    assert clipped(errors).tolist() == [0.2, 1, 1, 1, 1]


def test_the_axis_by_hand() -> None:
    assert position(np.array([[9.0, 99.0]])) == pytest.approx(1.5)
    assert position(np.array([[0.0]])) == 0
    assert position(np.array([[9.0, np.inf]])) is None


def test_fewer_than_five_batches_have_no_interval() -> None:
    assert cap_interval(np.ones((1, 2)), np.zeros((1, 2)), np.ones((1, 2, 4)), 1.0) is None
    assert mean_interval(np.ones(4)) is None


def test_the_interval_is_students_where_accuracies_are_exact() -> None:
    each = np.array([0.1, 0.4, 0.2, 0.6, 0.3])
    found = cap_interval(np.ones((1, 1)), np.zeros((1, 1)), each[None, None], 1.0)
    low, high = t.interval(0.95, 4, each.mean(), each.std(ddof=1) / math.sqrt(5))
    assert found == pytest.approx((low, high))


def test_five_repetitions_make_students_interval_of_their_caps() -> None:
    caps = np.array([0.1, 0.4, 0.2, 0.6, 0.3])
    found = cap_interval(caps[:, None], np.ones((5, 1)), np.ones((5, 1, 3)), 1.0)
    low, high = t.interval(0.95, 4, caps.mean(), caps.std(ddof=1) / math.sqrt(5))
    assert found == pytest.approx((low, high))


def test_the_interval_covers_what_it_says() -> None:
    """Batches and test records are drawn anew; accuracies of a grid come from the same records."""
    rng, batches, tested = np.random.default_rng(0), 8, 200
    truth = (0.7 * 0.3 + 0.5 * 0.6) / 2
    hits = 0
    for _ in range(400):
        ease = rng.random(tested)
        found = np.array([[(ease < 0.7).sum(), (ease < 0.5).sum()]])
        ends = np.array([[wilson(n / tested, tested, 1.96) for n in row] for row in found])
        own = rng.normal(0, 0.15, batches)
        distances = np.stack([0.3 + own, 0.6 + own])[None]
        interval = cap_interval(found / tested, (ends[..., 1] - ends[..., 0]) / 2, distances, 1.0)
        assert interval is not None
        hits += interval[0] <= truth <= interval[1]
    assert hits / 400 > 0.92  # 3 standard errors below 0.95


def test_intervals_end_where_values_do() -> None:
    found = mean_interval(np.array([1.0, 1.0, 1.0, 1.0, 0.0]))
    assert found is not None
    assert found[1] == 1
    assert cap_interval(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1, 5)), 1.0) == (0, 1)
