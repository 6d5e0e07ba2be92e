import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom

from gradaudit.dp.bounds import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    count_errors,
    epsilon_by_direction,
    epsilon_ceiling,
    epsilon_lower,
    epsilon_of_rates,
    lower_bound,
)

TRIALS = 60
COUNTS = st.integers(0, TRIALS)
SETTINGS = {"delta": 1e-5, "alpha": 0.05}


def test_clopper_pearson_inverts_the_binomial_tail():
    errors = np.arange(1, TRIALS)
    upper = clopper_pearson_upper(errors, TRIALS, 0.025)
    lower = clopper_pearson_lower(errors, TRIALS, 0.025)
    np.testing.assert_allclose(binom.cdf(errors, TRIALS, upper), 0.025, rtol=1e-9)
    np.testing.assert_allclose(binom.sf(errors - 1, TRIALS, lower), 0.025, rtol=1e-9)
    np.testing.assert_allclose(upper, beta.ppf(0.975, errors + 1, TRIALS - errors), rtol=1e-9)


def test_clopper_pearson_at_both_ends():
    np.testing.assert_allclose(
        clopper_pearson_upper([0, TRIALS], TRIALS, 0.025), [1 - 0.025 ** (1 / TRIALS), 1]
    )
    np.testing.assert_allclose(
        clopper_pearson_lower([0, TRIALS], TRIALS, 0.025), [0, 0.025 ** (1 / TRIALS)]
    )


def test_no_errors_give_the_ceiling():
    limit = 1 - 0.025 ** (1 / 5000)
    ceiling = epsilon_ceiling(5000, **SETTINGS)
    assert ceiling == pytest.approx(math.log((1 - 1e-5 - limit) / limit), rel=1e-12)
    assert ceiling == pytest.approx(7.21, abs=5e-3)


def test_both_directions():
    positive, negative = (clopper_pearson_upper(count, 500, 0.025) for count in (4, 90))
    by_positives, by_negatives = epsilon_by_direction(4, 90, 500, delta=0.01, alpha=0.05)
    assert by_positives == pytest.approx(math.log((0.99 - negative) / positive))
    assert by_negatives == pytest.approx(math.log((0.99 - positive) / negative))
    assert epsilon_lower(4, 90, 500, delta=0.01, alpha=0.05) == by_positives
    assert epsilon_lower(90, 4, 500, delta=0.01, alpha=0.05) == by_positives


def test_rates_without_a_gain_give_zero():
    np.testing.assert_array_equal(epsilon_of_rates([0.0, 0.5, 0.0], [1.0, 0.6, 0.99], 0.01), 0)
    assert epsilon_of_rates(0.0, 0.5, 0.01) == math.inf


@given(COUNTS, COUNTS, st.floats(0, 0.9), st.floats(0.001, 0.5))
def test_bound_is_between_zero_and_the_ceiling(positives, negatives, delta, alpha):
    bound = epsilon_lower(positives, negatives, TRIALS, delta=delta, alpha=alpha)
    assert 0 <= bound <= epsilon_ceiling(TRIALS, delta=delta, alpha=alpha) < math.inf


@given(st.integers(0, TRIALS - 1), COUNTS)
def test_bound_falls_with_every_further_error(positives, negatives):
    fewer = epsilon_lower(positives, negatives, TRIALS, **SETTINGS)
    assert epsilon_lower(positives + 1, negatives, TRIALS, **SETTINGS) <= fewer
    assert epsilon_lower(negatives, positives + 1, TRIALS, **SETTINGS) <= fewer


@given(COUNTS, COUNTS, st.floats(0, 0.5), st.floats(0.001, 0.4))
def test_bound_falls_with_delta_and_with_confidence(positives, negatives, delta, alpha):
    bound = epsilon_lower(positives, negatives, TRIALS, delta=delta, alpha=alpha)
    assert epsilon_lower(positives, negatives, TRIALS, delta=delta + 0.1, alpha=alpha) <= bound
    assert epsilon_lower(positives, negatives, TRIALS, delta=delta, alpha=alpha / 2) <= bound


@pytest.mark.parametrize("delta", [0.0, 0.02])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 2.0])
def test_exact_coverage_for_every_pair_of_rates_on_the_boundary(epsilon, delta):
    counts = np.arange(TRIALS + 1)
    bounds = epsilon_lower(counts[:, np.newaxis], counts, TRIALS, delta=delta, alpha=0.05)
    worst = 0.0
    for positive in np.linspace(0, (1 - delta) / math.exp(epsilon), 41):
        negative = 1 - delta - math.exp(epsilon) * positive
        truth = _epsilon_of_bits(positive, 1 - negative, delta)
        joint = np.outer(binom.pmf(counts, TRIALS, positive), binom.pmf(counts, TRIALS, negative))
        worst = max(worst, float(joint[bounds > truth + 1e-9].sum()))
    assert 0 < worst <= 0.05


def _epsilon_of_bits(null, alternative, delta):
    """The smallest ε at δ of two coins: every event, both ways."""
    pairs = [(null, alternative), (1 - null, 1 - alternative)]
    pairs += [(second, first) for first, second in pairs]
    gains = [(second - delta, first) for first, second in pairs if second > delta]
    return max([0.0, *(math.log(gain / rate) if rate else math.inf for gain, rate in gains)])


def test_ties_belong_to_the_alternative():
    positives, negatives = count_errors([0, 1, 1, 2], [0, 1, 1, 2], 1)
    assert (positives, negatives) == (3, 1)


def test_what_is_not_a_number_is_an_error_of_the_alternative_only():
    assert count_errors([math.nan], [math.nan], 0.0) == (0, 1)


def test_counts_of_many_audits_at_once():
    rng = np.random.default_rng(0)
    null, alternative = rng.normal(size=(2, 7, 50))
    thresholds = np.linspace(-1, 1, 7)
    positives, negatives = count_errors(null, alternative, thresholds)
    each = [count_errors(*row) for row in zip(null, alternative, thresholds, strict=True)]
    assert [tuple(pair) for pair in np.stack([positives, negatives], axis=1)] == each


def test_lower_bound_says_what_it_rests_on():
    null = np.repeat([0.0, 1.0], [990, 10])
    alternative = np.repeat([0.0, 1.0], [300, 700])
    bound = lower_bound(null, alternative, 0.5, delta=1e-5, alpha=0.1)
    assert bound.value == epsilon_lower(10, 300, 1000, delta=1e-5, alpha=0.1)
    assert bound.ceiling == epsilon_ceiling(1000, delta=1e-5, alpha=0.1)
    assert bound.evidence == {
        "false_positives": 10,
        "false_negatives": 300,
        "direction": "false positives",
    }
    assert (bound.method, bound.thresholds) == ("clopper-pearson", (0.5, 0.5))
    assert not bound.flawless


def test_separated_hypotheses_reach_the_ceiling_and_the_other_direction_is_named():
    separated = lower_bound([0] * 50, [1] * 50, 1, delta=0)
    assert separated.flawless
    assert separated.value == separated.ceiling
    null, alternative = [1] * 20 + [0] * 30, [1] * 50
    assert lower_bound(null, alternative, 1, delta=0).evidence["direction"] == "false negatives"


def test_numbers_of_trials_may_be_unequal():
    found = lower_bound([0] * 90 + [1] * 10, [1] * 180 + [0] * 20, 1, delta=0, alpha=0.05)
    positive = clopper_pearson_upper(10, 100, 0.025)
    negative = clopper_pearson_upper(20, 200, 0.025)
    expected = max(math.log((1 - negative) / positive), math.log((1 - positive) / negative))
    assert found.value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("null", "alternative", "options", "message"),
    [
        ([0], [], {}, "both hypotheses"),
        ([], [0], {}, "both hypotheses"),
        ([0], [1], {"delta": 1.0}, "delta < 1"),
        ([0], [1], {"alpha": 1.0}, "alpha < 1"),
    ],
)
def test_lower_bound_refuses(null, alternative, options, message):
    with pytest.raises(ValueError, match=message):
        lower_bound(null, alternative, 0, **{"delta": 0.0, **options})
