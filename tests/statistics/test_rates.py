"""Intervals of rates against their textbook values and by simulation."""

import numpy as np
import pytest
from scipy.stats import binomtest, norm, t

from gradaudit.statistics.intervals import clopper_pearson, clustered, difference, wilson


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


@pytest.mark.parametrize("alike", [False, True])
def test_shares_over_clusters_cover_whether_members_are_alike_or_not(alike: bool) -> None:
    covered = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        chances = (rng.random(32) < 0.3).astype(float) if alike else np.full(32, 0.3)
        _, (low, high) = clustered(rng.binomial(8, chances) / 8, np.full(32, 8.0))
        covered += low <= 0.3 <= high
    assert 0.91 <= covered / 300 <= 0.99


def test_clusters_that_are_all_alike_prove_no_more_than_their_number() -> None:
    value, (low, high) = clustered(np.zeros(40), np.full(40, 8.0))
    assert (value, low) == (0, 0)
    assert 0.05 < high < 0.12
    assert clustered(np.zeros(1), np.ones(1)) == (0, (0, 1))


@pytest.mark.parametrize("number", [9, 20, 47])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_clusters_that_agree_count_once_however_their_mean_rounds(
    number: int, share: float
) -> None:
    rate, (low, high) = clustered(np.full(number, share), np.full(number, 8.0))
    assert rate == share
    assert low <= rate <= high
    assert (low, high) == clustered(np.full(number, share), np.ones(number))[1]


@pytest.mark.parametrize("rare", [0, 1])
@pytest.mark.parametrize(("clusters", "trials"), [(4, 40), (5, None)])
def test_fewer_than_five_clusters_with_the_rarer_kind_count_once_each(
    rare: int, clusters: int, trials: int | None
) -> None:
    """Of 40 clusters of 8: five tell their variance, 40/39 Σ (x − p)²/40²."""
    shares = np.where(np.arange(40) < clusters, 1 / 8, 0.0)
    shares = shares if rare else 1 - shares
    rate = shares.mean()
    variance = 40 / 39 * ((shares - rate) ** 2).sum() / 40**2
    count = trials or min(rate * (1 - rate) / variance, 40 * 8)
    assert count == trials or count > 40
    expected = wilson(rate, count, float(t.ppf(0.975, 39)))
    found, interval = clustered(shares, np.full(40, 8.0))
    assert found == pytest.approx(rate)
    assert interval == pytest.approx(expected)
