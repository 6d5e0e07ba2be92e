"""Information from counts of successes, against numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from gradaudit.audits.vinfo.original import THRESHOLDS, Tally, ceiling, log_success
from gradaudit.core.statistics.intervals import clopper_pearson


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
    found = tally([[3, 1]], [[0.25, 0.0]])
    assert found.values[0] == pytest.approx((math.log(3.5 / 1.5) + math.log(1.5 / 0.5)) / 2)


def test_the_ceiling_is_reached_where_all_restarts_succeed_and_no_guess_does() -> None:
    for restarts in (1, 8, 100):
        found = tally([[restarts] * 3], [[0.0] * 3], restarts)
        assert found.values[0] == pytest.approx(ceiling(restarts))
        assert ceiling(restarts) == pytest.approx(math.log(2 * restarts + 1))


def test_one_member_and_one_kind_of_guess_serve_all_records() -> None:
    # each member is best on one record; alone on both the second has the larger mean of ln f
    found = tally([[4, 0], [1, 2]], [[0.0, 0.0], [0.5, 0.0]])
    first, second = math.log(4.5 * 0.5) / 2, math.log(1.5 * 2.5) / 2
    prior = math.log(2.5 * 0.5) / 2
    assert found.members[0] == pytest.approx([first - prior, second - prior])
    assert found.best[0] == 1
    assert found.kinds[0] == 1
    assert found.values[0] == pytest.approx(second - prior)


def test_guessing_is_in_the_family_so_that_nothing_is_negative() -> None:
    found = tally([[0, 0]], [[0.5, 0.5]])
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
    found = Tally(counts, np.zeros((1, 1, 2, 2)), 4)
    assert found.values[0] == pytest.approx(math.log(9 * 1 * 5 * 5) / 4)


def test_intervals_of_many_updates_have_the_spread_of_a_mean() -> None:
    rng = np.random.default_rng(0)
    counts = rng.binomial(8, 0.6, size=(1, 200))
    found = tally(counts.tolist(), [[0.0] * 200], 8)
    own = log_success(counts[0].astype(float), 8) - math.log(0.5 / 9)
    half = 1.97 * own.std() / math.sqrt(200)
    low, high = found.value_ends[0]
    assert low < own.mean() - half < own.mean() + half < high
    assert high - low < 4 * half, "as of restarts, which tell less than their logarithms"
    rates = counts[0] / 8
    half = 1.97 * rates.std() / math.sqrt(200)
    expected = [rates.mean() - half, rates.mean() + half]
    assert found.rate_ends[0] == pytest.approx(expected, abs=half / 5)


def test_the_interval_of_the_family_is_of_its_best_member_against_the_best_guess() -> None:
    """Two members and two kinds of guess, whose intervals alone are those of pairs."""
    made = tally([[4, 4, 3, 4], [1, 0, 2, 1]], [[0.0] * 4, [0.25] * 4])
    alone = [
        tally([counts], [guesses]).value_ends[0]
        for counts in ([4, 4, 3, 4], [1, 0, 2, 1])
        for guesses in ([0.0] * 4, [0.25] * 4)
    ]
    assert made.value_ends[0] == pytest.approx(alone[1]), "the first member, the second guess"


@pytest.mark.parametrize(("hits", "updates"), [(0, 3), (4, 3), (4, 10)])
def test_updates_that_agree_count_once_each(hits: int, updates: int) -> None:
    found = tally([[hits] * updates], [[0.0] * updates])
    exact = clopper_pearson(updates * (hits > 0), updates)
    assert found.rate_ends[0] == pytest.approx(exact, abs=0.02)
    low, high = found.value_ends[0]
    assert low <= ceiling(4) * (hits > 0) <= high
    assert high - low > 0.3 / updates


@pytest.mark.slow
@pytest.mark.parametrize("updates", [3, 10])
@pytest.mark.parametrize("alike", [False, True])
def test_intervals_over_few_updates_cover(updates: int, alike: bool) -> None:
    """Of eight restarts at 16 records each; updates succeed or fail as a whole, or each alone."""
    random, covered = np.random.default_rng(0), np.zeros(2)
    every = np.arange(9)
    law = stats.binom.pmf(every, 8, 0.4) if not alike else np.where(every == 8, 0.4, 0.0)
    law[0] += 1 - law.sum()
    truth = float(law @ log_success(every.astype(float), 8)) - math.log(0.5 / 9)
    for _ in range(200):
        shape = (1, 1, updates, 16)
        whole = np.broadcast_to(8.0 * (random.random((1, 1, updates, 1)) < 0.4), shape)
        counts = whole if alike else random.binomial(8, 0.4, shape).astype(float)
        found = Tally(counts, np.zeros((1, 1, updates, 1)), 8)
        pairs = (found.value_ends[0], truth), (found.rate_ends[0], 0.4)
        covered += [low <= at <= high for (low, high), at in pairs]
    assert (covered / 200 >= 0.93).all()
