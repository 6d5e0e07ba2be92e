"""The bootstrap-t: against a plain loop, its coverage, and how few records give no interval."""

import numpy as np
import pytest

from gradaudit.statistics.intervals import REPLICATES, bootstrap_counts, ratio_interval
from tests.coverage import assert_covers


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
