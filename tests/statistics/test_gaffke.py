"""Gaffke's interval, which holds at any number of values: closed forms, and simulation."""

import numpy as np
import pytest
from scipy.stats import binomtest

from gradaudit.statistics.intervals import gaffke


@pytest.mark.parametrize(("hits", "count"), [(0, 3), (3, 3), (2, 10), (9, 10), (20, 40)])
def test_gaffkes_interval_of_zeros_and_ones_is_clopper_and_pearsons(hits: int, count: int) -> None:
    exact = binomtest(hits, count).proportion_ci(method="exact")
    values = np.r_[np.ones(hits), np.zeros(count - hits)]
    assert gaffke(values, np.ones(count)) == pytest.approx((exact.low, exact.high), abs=0.015)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_gaffkes_interval_of_one_value_is_markovs(value: float) -> None:
    low, high = gaffke(np.array([value]), np.ones(1))
    assert low == pytest.approx(0.025 * value, rel=0.15)
    assert 1 - high == pytest.approx(0.025 * (1 - value), rel=0.15)


def test_gaffkes_interval_does_not_depend_on_the_unit_or_order_of_sizes() -> None:
    values, sizes = np.array([0.2, 0.9, 0.5]), np.array([1.0, 7.0, 3.0])
    ends = gaffke(values, sizes)
    assert ends == pytest.approx(gaffke(values, 10 * sizes))
    assert ends == pytest.approx(gaffke(values[::-1], sizes[::-1]), abs=0.02)
    mirrored = gaffke(1 - values, sizes)
    assert ends == pytest.approx((1 - mirrored[1], 1 - mirrored[0]), abs=0.02)


@pytest.mark.parametrize("number", [2, 5, 20])
@pytest.mark.parametrize("rare", [0.05, 0.3])
def test_gaffkes_interval_covers_means_that_rare_values_carry(number: int, rare: float) -> None:
    """Values of .9 of which some, independently of the others, are 0 instead."""
    random, truth, covered = np.random.default_rng(3), 0.9 * (1 - rare), 0
    for _ in range(300):
        values = np.where(random.random(number) < rare, 0.0, 0.9)
        low, high = gaffke(values, np.ones(number))
        covered += low <= truth <= high
    assert covered / 300 >= 0.93


@pytest.mark.parametrize("number", [3, 10])
def test_gaffkes_interval_covers_a_ratio_of_sums_of_unequal_clusters(number: int) -> None:
    """Clusters of 1 to 40 members, of which the larger are read less well."""
    random, covered = np.random.default_rng(4), 0
    drawn = random.integers(1, 41, 200_000)
    truth = float((drawn * (1 - drawn / 80)).sum() / drawn.sum())
    for _ in range(300):
        sizes = random.integers(1, 41, number)
        values = random.binomial(sizes, 1 - sizes / 80) / sizes
        low, high = gaffke(values, sizes.astype(float))
        covered += low <= truth <= high
    assert covered / 300 >= 0.93
