"""Information from counts of successes, against numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from gradaudit.information.original import (
    FEWEST,
    THRESHOLDS,
    Tally,
    ceiling,
    information,
    log_success,
    spread,
)


def tally(successes: list[list[int]], guessed: list[list[float]], restarts: int = 4) -> Tally:
    """One threshold, one record in each update: (members, updates) and (kinds, updates)."""
    counts = np.array(successes, dtype=float)[None, :, :, None]
    return Tally(counts, np.array(guessed)[None, :, :, None], restarts)


def test_thresholds_are_those_of_the_paper() -> None:
    assert THRESHOLDS[0] == 0.05
    assert THRESHOLDS[-1] == 0.8
    assert np.diff(THRESHOLDS) == pytest.approx(np.full(15, 0.05))


def test_success_is_smoothed_so_that_none_has_a_logarithm() -> None:
    found = log_success(np.array([0.0, 3.0, 4.0]), 4)
    assert found == pytest.approx([math.log(0.1), math.log(0.7), math.log(0.9)])


def test_the_value_is_the_mean_over_records_of_the_gain_over_guessing() -> None:
    # f[g] = 3.5/5 and 1.5/5, f[∅] = (4 · 0.25 + 0.5)/5 and 0.5/5
    found = information(tally([[3, 1]], [[0.25, 0.0]]))
    assert found.values[0] == pytest.approx((math.log(3.5 / 1.5) + math.log(1.5 / 0.5)) / 2)


def test_the_ceiling_is_reached_where_all_restarts_succeed_and_no_guess_does() -> None:
    for restarts in (1, 8, 100):
        found = information(tally([[restarts] * 3], [[0.0] * 3], restarts))
        assert found.values[0] == pytest.approx(ceiling(restarts))
        assert ceiling(restarts) == pytest.approx(math.log(2 * restarts + 1))


def test_one_member_and_one_kind_of_guess_serve_all_records() -> None:
    # each member is best on one record; alone on both the second has the larger mean of ln f
    found = information(tally([[4, 0], [1, 2]], [[0.0, 0.0], [0.5, 0.0]]))
    first, second = math.log(4.5 * 0.5) / 2, math.log(1.5 * 2.5) / 2
    prior = math.log(2.5 * 0.5) / 2
    assert found.members[0] == pytest.approx([first - prior, second - prior])
    assert found.best[0] == 1
    assert found.kinds[0] == 1
    assert found.values[0] == pytest.approx(second - prior)


def test_guessing_is_in_the_family_so_that_nothing_is_negative() -> None:
    found = information(tally([[0, 0]], [[0.5, 0.5]]))
    assert found.members[0, 0] == pytest.approx(math.log(0.5 / 2.5))
    assert found.values[0] == 0


def test_no_success_cannot_be_compared_and_a_guess_can() -> None:
    assert not tally([[0, 0]], [[0.0, 0.0]]).comparable[0]
    assert tally([[0, 0]], [[0.0, 0.1]]).comparable[0]
    assert tally([[0, 1]], [[0.0, 0.0]]).comparable[0]


def test_diverged_restarts_count_as_failures() -> None:
    found = np.array([[[[0.3, np.nan, 0.9, np.nan]]]])
    counted = Tally.of(found, np.array([[[[0.1, 0.6]]]]), (0.05, 0.3, 0.5))
    assert counted.successes[:, 0, 0, 0].tolist() == [2, 2, 1]
    assert counted.guessed[:, 0, 0, 0].tolist() == [1.0, 0.5, 0.5]
    assert counted.rates[:, 0, 0].tolist() == [0.5, 0.5, 0.25]
    assert counted.restarts == 4


def test_records_of_an_update_count_alike() -> None:
    counts = np.array([4.0, 0.0, 2.0, 2.0]).reshape(1, 1, 2, 2)
    found = information(Tally(counts, np.zeros((1, 1, 2, 2)), 4))
    assert found.values[0] == pytest.approx(math.log(9 * 1 * 5 * 5) / 4)


def test_the_bootstrap_has_the_spread_of_a_mean() -> None:
    rng = np.random.default_rng(0)
    counts = rng.binomial(8, 0.6, size=(1, 200))
    made = tally(counts.tolist(), [[0.0] * 200], 8)
    found = spread(made, 0)
    assert found is not None
    own = log_success(counts[0].astype(float), 8) - math.log(0.5 / 9)  # of so many, t is normal
    half = 1.96 * own.std() / math.sqrt(200)
    assert found.values[0] == pytest.approx([own.mean() - half, own.mean() + half], abs=half / 5)
    rates = counts[0] / 8
    half = 1.96 * rates.std() / math.sqrt(200)
    expected = [rates.mean() - half, rates.mean() + half]
    assert found.rates[0] == pytest.approx(expected, abs=half / 5)


def test_the_bootstrap_of_few_updates_is_as_wide_as_students_interval() -> None:
    """Eight updates with rates all but normal: the draws' 0.6 and 99.4 % are ±2.5 deviations."""
    counts = np.array([[300, 340, 380, 400, 410, 430, 460, 500]])
    found = spread(tally(counts.tolist(), [[0.0] * 8], 800), 0)
    assert found is not None
    rates = counts[0] / 800
    half = stats.t.ppf(0.975, 7) * rates.std(ddof=1) / math.sqrt(8)
    expected = [rates.mean() - half, rates.mean() + half]
    assert found.rates[0] == pytest.approx(expected, abs=half / 8)


def test_the_bootstrap_chooses_members_anew() -> None:
    made = tally([[4] * 5 + [0] * 5, [0] * 5 + [4] * 5], [[0.0] * 10])
    found = spread(made, 0)
    assert found is not None
    assert found.values[0, 0] >= math.log(9) / 2 - 1e-12


def test_few_updates_have_no_interval() -> None:
    assert spread(tally([[1] * (FEWEST - 1)], [[0.0] * (FEWEST - 1)]), 0) is None
    assert spread(tally([[1] * FEWEST], [[0.0] * FEWEST]), 0) is not None
