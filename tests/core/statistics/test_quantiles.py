"""Intervals by the bootstrap-t, and of quantiles: plain loops, exact ranks and coverage."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from gradaudit.core.statistics.intervals import (
    REPLICATES,
    bootstrap_counts,
    fewest_values,
    order_statistics,
    quantile_interval,
    ratio_interval,
)
from gradaudit.core.text import UNBOUNDED
from tests.coverage import assert_covers

TAIL = 0.025


def test_draws_are_with_replacement_and_by_seed() -> None:
    draws = bootstrap_counts(7, 3)
    assert draws.shape == (REPLICATES, 7)
    assert (draws.sum(axis=1) == 7).all()
    assert draws.max() > 1
    assert np.array_equal(draws, bootstrap_counts(7, 3))
    assert not np.array_equal(draws, bootstrap_counts(7, 4))


def test_the_interval_by_a_plain_loop_over_redraws() -> None:
    generator = np.random.default_rng(0)
    above, below = generator.gamma(2.0, size=9), generator.gamma(3.0, size=9)
    draws = bootstrap_counts(9, 0)

    def fitted(x: np.ndarray, t: np.ndarray) -> tuple[float, float]:
        """The logarithm of a ratio of means and its standard error, by the delta method."""
        ratio = x.mean() / t.mean()
        return np.log(ratio), np.sqrt(np.mean((x - ratio * t) ** 2) / 9) / x.mean()

    centre, error = fitted(above, below)
    studentised = []
    for times in draws.astype(int):
        again, own = fitted(np.repeat(above, times), np.repeat(below, times))
        studentised.append((again - centre) / own)
    low, high = np.quantile(studentised, [0.025, 0.975])
    expected = np.exp([centre - high * error, centre - low * error])
    np.testing.assert_allclose(ratio_interval(above, below, draws) or (), expected, rtol=1e-9)


@pytest.mark.parametrize(("count", "deviation"), [(16, 0.1), (64, 1.5)])
def test_means_of_skewed_values_are_covered(count: int, deviation: float) -> None:
    generator = np.random.default_rng(1)
    ones, draws = np.ones(count), bootstrap_counts(count, 0)
    intervals = [
        ratio_interval(np.exp(deviation * generator.standard_normal(count)), ones, draws) or (1, 0)
        for _ in range(200)
    ]
    assert_covers(intervals, float(np.exp(deviation**2 / 2)), 0.91)


def test_shares_of_skewed_values_are_covered() -> None:
    """Two layers whose values share a lognormal factor: the share has a mean of its own."""
    generator = np.random.default_rng(2)
    intervals = []
    for _ in range(200):
        factor = np.exp(generator.standard_normal(40))
        own = factor * generator.uniform(0.5, 1.5, 40)
        both = own + 3 * factor * generator.uniform(0.5, 1.5, 40)
        intervals.append(ratio_interval(own, both, bootstrap_counts(40, 0)) or (1, 0))
    assert_covers(intervals, 0.25, 0.92)


def test_records_that_agree_leave_no_width_and_three_no_interval() -> None:
    draws = bootstrap_counts(6, 0)
    assert ratio_interval(np.full(6, 0.3), np.ones(6), draws) == pytest.approx((0.3, 0.3))
    assert ratio_interval(np.zeros(6), np.ones(6), draws) == (0, 0)
    values = np.random.default_rng(0).gamma(2.0, size=6)
    assert ratio_interval(values, 4 * values, draws) == pytest.approx((0.25, 0.25))
    assert ratio_interval(np.arange(3.0), np.ones(3), bootstrap_counts(3, 0)) is None
    assert ratio_interval(np.arange(4.0), np.ones(4), bootstrap_counts(4, 0)) is not None


@pytest.mark.parametrize("unit", [1e-200, 1e150])
def test_the_unit_of_measurement_does_not_matter(unit: float) -> None:
    """Records of a saturated model have Jacobians whose squares are below the smallest number."""
    values, draws = np.random.default_rng(0).gamma(2.0, size=6), bootstrap_counts(6, 0)
    expected = np.array(ratio_interval(values, np.ones(6), draws))
    for below in (np.ones(6), np.full(6, unit)):
        found = ratio_interval(unit * values, below, draws)
        np.testing.assert_allclose(found or (), expected * unit / below[0], rtol=1e-9)


def at_most(k: int, count: int, share: Fraction) -> Fraction:
    """P(B ≤ k) of a binomial number."""
    terms = (comb(count, i) * share**i * (1 - share) ** (count - i) for i in range(k + 1))
    return sum(terms, Fraction(0))


@pytest.mark.parametrize("count", [1, 2, 5, 6, 12, 35, 36, 40, 200])
@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(9, 10)])
def test_ranks_by_exact_fractions(count: int, share: Fraction) -> None:
    below, above = order_statistics(count, float(share), TAIL)
    assert below == 0 or at_most(below - 1, count, share) <= TAIL
    assert at_most(below, count, share) > TAIL
    assert 1 - at_most(above - 1, count, share) <= TAIL
    assert 1 - at_most(above - 2, count, share) > TAIL or above == 1


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_an_upper_end_takes_so_many_values(share: float) -> None:
    needed = fewest_values(share, TAIL)
    assert order_statistics(needed, share, TAIL)[1] == needed
    assert order_statistics(needed - 1, share, TAIL)[1] == needed


@pytest.mark.parametrize("count", [3, 10, 40])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_quantiles_of_heavy_tails_and_of_ties_are_covered(count: int, share: float) -> None:
    generator = np.random.default_rng(0)
    heavy = generator.pareto(0.3, (1000, count))
    found = [quantile_interval(values, values, share, TAIL) for values in heavy]
    assert_covers(found, (1 - share) ** (-1 / 0.3) - 1, 0.95)
    tied = generator.integers(0, 4, (1000, count)).astype(float)
    found = [quantile_interval(values, values, share, TAIL) for values in tied]
    assert_covers(found, {0.5: 1.0, 0.9: 3.0}[share], 0.95)


def test_ends_come_from_the_ends_of_the_values() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1.0, 13))
    assert quantile_interval(values / 2, values * 2, 0.5, TAIL) == (1.5, 20)
    assert quantile_interval(values / 2, values * 2, 0.9, TAIL) == (4, UNBOUNDED)
    assert quantile_interval(values[:3], values[:3], 0.5, TAIL) == (0, UNBOUNDED)
