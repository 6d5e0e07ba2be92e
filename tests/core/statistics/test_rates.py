"""Intervals of rates, and Gaffke's of any mean, against closed forms, textbooks and simulation."""

import numpy as np
import pytest
from scipy.stats import binomtest, norm, t

from gradaudit.core.statistics.intervals import (
    clopper_pearson,
    clustered,
    difference,
    gaffke,
    wilson,
)
from tests.coverage import assert_covers


@pytest.mark.parametrize(("hits", "count"), [(0, 20), (3, 20), (20, 20)])
def test_intervals_of_whole_counts_are_the_textbooks(hits: int, count: int) -> None:
    exact = binomtest(hits, count).proportion_ci(method="exact")
    assert clopper_pearson(hits, count) == pytest.approx((exact.low, exact.high))
    score = binomtest(hits, count).proportion_ci(method="wilson")
    found = wilson(hits / count, count, float(norm.ppf(0.975)))
    assert found == pytest.approx((score.low, score.high))


def test_a_difference_has_newcombes_interval() -> None:
    """His example (a): 56/70 − 48/80, method 10."""
    z = float(norm.ppf(0.975))
    found = difference(56 / 70, wilson(56 / 70, 70, z), 48 / 80, wilson(48 / 80, 80, z))
    assert found == pytest.approx((0.0524, 0.3339), abs=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("alike", [False, True])
def test_shares_over_clusters_cover_whether_members_are_alike_or_not(alike: bool) -> None:
    rng, found = np.random.default_rng(0), []
    for _ in range(300):
        chances = (rng.random(32) < 0.3).astype(float) if alike else np.full(32, 0.3)
        found.append(clustered(rng.binomial(8, chances) / 8, np.full(32, 8.0))[1])
    assert_covers(found, 0.3, 0.95)
    binomial = 2 * norm.ppf(0.975) * np.sqrt(0.3 * 0.7 / (32 if alike else 256))
    widths = np.diff(found)
    assert np.median(widths) < binomial + 0.06, "1/20 is allowed for what the sample missed"


def test_clusters_that_are_all_alike_prove_no_more_than_their_number() -> None:
    value, (low, high) = clustered(np.zeros(40), np.full(40, 8.0))
    assert (value, low) == (0, 0)
    assert high == pytest.approx(clopper_pearson(0, 40)[1], rel=0.05)


@pytest.mark.parametrize("number", [1, 9, 20, 47])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_clusters_that_agree_count_once_however_their_mean_rounds(
    number: int, share: float
) -> None:
    rate, (low, high) = clustered(np.full(number, share), np.full(number, 8.0))
    assert rate == share
    assert low <= rate <= high
    assert (low, high) == clustered(np.full(number, share), np.ones(number))[1]


def test_clusters_that_differ_little_count_by_their_variance() -> None:
    """Ten shares, each of members of both kinds: 10/9 Σ (x − p)²/10², and 1/20 of them more."""
    shares = np.array([0.8, 0.9, 0.85, 0.95, 0.7, 0.9, 0.8, 0.95, 0.9, 0.85])
    rate = shares.mean()
    variance = 10 / 9 * ((shares - rate) ** 2).sum() / 100
    low, high = wilson(rate, rate * (1 - rate) / variance, float(t.ppf(0.975, 9)))
    expected = 10 * low / 10.5, (10 * high + 0.5) / 10.5
    found, interval = clustered(shares, np.full(10, 64.0))
    assert found == pytest.approx(rate)
    assert interval == pytest.approx(expected)
    assert interval[0] > 0.75, "ten batches of which 86 % is named exceed a limit of 75 %"


@pytest.mark.parametrize(
    "shares",
    [
        np.array([0.8, 0.9, 0.85, 0.95, 0.7, 0.9, 0.8, 0.95, 0.9]),  # nine alone
        np.array([1, 1, 1, 1, 1, 1, 1, 1, 0.9, 0.9]),  # two of ten hold missed members
        np.array([0.0, 0.9, 0.85, 0.95, 0.7, 0.9, 0.8, 0.95, 0.9, 0.85]),  # one missed as a whole
    ],
    ids=["few", "one-sided", "an update apart"],
)
def test_other_clusters_have_the_interval_that_always_holds(shares: np.ndarray) -> None:
    sizes = np.full(len(shares), 64.0)
    assert clustered(shares, sizes)[1] == gaffke(shares, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("number", [3, 12])
@pytest.mark.parametrize("share", [0.02, 0.86])
@pytest.mark.parametrize("dependence", [0.0, 1 / 16, 2 / 5, 1.0])
def test_shares_of_few_clusters_cover(number: int, share: float, dependence: float) -> None:
    random, found = np.random.default_rng(7), []
    for _ in range(200):
        if dependence in (0.0, 1.0):
            alike = random.random(number) < share
            chances = alike.astype(float) if dependence else np.full(number, share)
        else:
            total = 1 / dependence - 1
            chances = random.beta(total * share, total * (1 - share), number)
        missed = random.binomial(64, chances) / 64
        found.append(clustered(missed, np.full(number, 64.0))[1])
    assert_covers(found, share, 0.95)


@pytest.mark.parametrize(("hits", "count"), [(0, 3), (3, 3), (2, 10), (20, 40)])
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


@pytest.mark.parametrize(("number", "rare"), [(2, 0.05), (2, 0.3), (5, 0.3), (20, 0.05)])
def test_gaffkes_interval_covers_means_that_rare_values_carry(number: int, rare: float) -> None:
    """Values of .9 of which some, independently of the others, are 0 instead."""
    values = np.where(np.random.default_rng(3).random((200, number)) < rare, 0.0, 0.9)
    assert_covers([gaffke(each, np.ones(number)) for each in values], 0.9 * (1 - rare), 0.95)


@pytest.mark.parametrize("number", [3, 10])
def test_gaffkes_interval_covers_a_ratio_of_sums_of_unequal_clusters(number: int) -> None:
    """Clusters of 1 to 40 members, of which the larger are read less well."""
    random = np.random.default_rng(4)
    drawn = random.integers(1, 41, 200_000)
    truth = float((drawn * (1 - drawn / 80)).sum() / drawn.sum())
    sizes = random.integers(1, 41, (200, number))
    values = random.binomial(sizes, 1 - sizes / 80) / sizes
    found = [gaffke(each, size.astype(float)) for each, size in zip(values, sizes, strict=True)]
    assert_covers(found, truth, 0.95)
