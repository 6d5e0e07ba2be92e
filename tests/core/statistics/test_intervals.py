"""Student's interval, the one for new records, and correlation, against scipy."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from gradaudit.core.statistics.correlation import pearson
from gradaudit.core.statistics.intervals import nadeau_bengio, skewed, student, wilson
from tests.coverage import covered


def test_students_interval_is_scipys_and_that_for_new_records_wider() -> None:
    values = np.random.default_rng(0).normal(size=20)
    expected = stats.t.interval(0.95, 19, values.mean(), stats.sem(values))
    np.testing.assert_allclose(student(values), expected)
    ratio = np.diff(nadeau_bengio(values, 30, 70)) / np.diff(student(values))
    assert ratio == pytest.approx(np.sqrt((1 / 20 + 30 / 70) * 20))


def test_the_interval_of_a_skewed_law_holds_the_mean_where_students_misses_it() -> None:
    """Coverage by simulation: of lognormal values Student's fails, of normal ones both hold."""
    draws, held = np.random.default_rng(0), {}
    for law, mean in (("lognormal", np.exp(0.5)), ("normal", 0.0)):
        samples = getattr(draws, law)(size=(1000, 16))
        for interval in (student, skewed):
            held[law, interval.__name__] = covered(map(interval, samples), mean) / 1000
    assert held["lognormal", "student"] < 0.88
    assert held["lognormal", "skewed"] > 0.9
    assert held["normal", "skewed"] > 0.93


def test_the_interval_of_a_skewed_law_turns_back_halls_transformation() -> None:
    values = np.random.default_rng(1).exponential(size=20)
    mean, spread = values.mean(), values.std(ddof=1)
    skewness, n = ((values - mean) ** 3).mean() / spread**3, 20

    def transformed(ratio: float) -> float:
        cubic = ratio + skewness * ratio**2 / (3 * n**0.5) + skewness**2 * ratio**3 / (27 * n)
        return float(cubic + skewness / (6 * n**0.5))

    quantile = stats.t.ppf(0.975, n - 1)
    for end, sign in zip(skewed(values), (1, -1), strict=True):
        ratio = (mean - end) / (spread / n**0.5)
        assert transformed(ratio) == pytest.approx(sign * quantile)
    assert skewed(np.full(5, 2.0)) == (2.0, 2.0)


@pytest.mark.parametrize(("successes", "n"), [(0, 7), (3, 7), (7, 7), (900, 1000)])
def test_wilsons_interval_holds_the_shares_that_a_score_test_accepts(
    successes: int, n: int
) -> None:
    share = successes / n

    def score(p: float) -> float:
        return (share - p) ** 2 - 1.959963984540054**2 * p * (1 - p) / n

    low, high = wilson(share, n, 1.959963984540054)
    inside = min(max(share, 1e-9), 1 - 1e-9)
    assert low == (0 if successes == 0 else pytest.approx(brentq(score, 1e-12, inside)))
    assert high == (1 if successes == n else pytest.approx(brentq(score, inside, 1 - 1e-12)))


def test_correlation_is_scipys() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=15)
    y = x + rng.normal(size=15)
    for some, others in ((x, y), (np.array([1.0, 2, 3, 4, 6]), np.array([1.0, 3, 2, 5, 4]))):
        found, expected = pearson(some, others), stats.pearsonr(some, others)
        assert found is not None
        np.testing.assert_allclose([found.r, found.p], [expected.statistic, expected.pvalue])
        np.testing.assert_allclose(found.interval, expected.confidence_interval(0.95))
        np.testing.assert_allclose(2 * stats.t.sf(abs(found.t), len(some) - 2), found.p)
        assert found.n == len(some)
    curved, line = pearson(x, np.exp(5 * x)), pearson(np.arange(6.0), np.arange(6.0))
    assert curved is not None
    assert curved.spearman == pytest.approx(1)
    assert curved.r < 0.9
    assert line is not None
    assert np.isfinite([line.r, line.t, *line.interval]).all()


def test_the_t_of_the_papers_table_belongs_to_its_r() -> None:
    """Mo et al. 2021, table 1: VGG11Net with 33 points has R = 0.952 and t = 17.35."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, 33))
    x = (x - x.mean()) / x.std()
    noise -= noise.mean() + x * (noise @ x) / 33
    found = pearson(x, 0.952 * x + np.sqrt(1 - 0.952**2) * noise / noise.std())
    assert found is not None
    assert found.r == pytest.approx(0.952)
    assert found.t == pytest.approx(17.35, abs=0.1)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 5]),
        ([1.0] * 6, [1, 2, 3, 4, 5, 6]),
        ([1, 2, 3, 4, 5, 6], [1.0] * 6),
    ],
)
def test_few_or_constant_points_have_none(x: list[float], y: list[float]) -> None:
    assert pearson(np.array(x), np.array(y)) is None


def test_points_in_clusters_are_jackknifed_by_cluster() -> None:
    """Two points a cluster that are the same: the interval is that of the clusters alone."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=12)
    y = 0.8 * x + 0.6 * rng.normal(size=12)
    twice = pearson(np.repeat(x, 2), np.repeat(y, 2), clusters=np.repeat(np.arange(12), 2).tolist())
    once = pearson(x, y, clusters=list(range(12)))
    left = [np.arctanh(np.corrcoef(np.delete(x, i), np.delete(y, i))[0, 1]) for i in range(12)]
    error = np.sqrt(11 / 12 * ((np.array(left) - np.mean(left)) ** 2).sum())
    assert twice is not None
    assert once is not None
    assert twice.interval == pytest.approx(once.interval)
    ends = np.arctanh(once.r) + np.array([-1, 1]) * stats.t.ppf(0.975, 11) * error
    assert once.interval == pytest.approx(tuple(np.tanh(ends)))
    assert once.t == pytest.approx(np.arctanh(once.r) / error)
    assert once.p == pytest.approx(2 * stats.t.sf(abs(once.t), 11))


def test_a_correlation_that_rests_on_one_cluster_says_nothing() -> None:
    """Whichever of the two does not vary in the other clusters."""
    flat, other = np.array([0.0, 0, 0, 1, 2, 4]), np.array([0.0, 2, 5, 3, 8, 7])
    for x, y in [(flat, flat**2), (flat, other), (other, flat)]:
        found = pearson(x, y, clusters=[0, 0, 0, 1, 1, 1])
        assert found is not None
        assert (found.t, found.p, found.interval) == (0, 1, (-1, 1))


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_wilsons_interval_holds_the_rate_in_spite_of_rounding(rate: float) -> None:
    for count in np.linspace(1, 300, 2000):
        low, high = wilson(rate, float(count), 2.0639)
        assert 0 <= low <= rate <= high <= 1
