import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm

from gradaudit.audits.dp_audit.law.bounds import (
    count_errors,
    epsilon_by_direction,
    epsilon_ceiling,
    epsilon_lower,
    epsilon_of_errors,
    epsilon_of_guesses,
    epsilon_of_rates,
    epsilon_two_tailed,
    guesses_ceiling,
    spared_guesses,
)
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.core.statistics.intervals import clopper_pearson_lower, clopper_pearson_upper

TRIALS = 60
COUNTS = st.integers(0, TRIALS)
RELEASES = 10_000
GUESSES = st.integers(0, 400)
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
    assert epsilon_of_errors(4, 90, 500, delta=0.01, alpha=0.05) == by_positives
    assert epsilon_of_errors(90, 4, 500, delta=0.01, alpha=0.05) == by_positives


def test_rates_without_a_gain_give_zero():
    np.testing.assert_array_equal(epsilon_of_rates([0.0, 0.5, 0.0], [1.0, 0.6, 0.99], 0.01), 0)
    assert epsilon_of_rates(0.0, 0.5, 0.01) == math.inf


@pytest.mark.slow
@given(st.integers(0, TRIALS - 1), COUNTS, st.floats(0, 0.9), st.floats(0.001, 0.4))
def test_bound_is_below_the_ceiling_and_falls_with_errors_delta_and_confidence(
    positives, negatives, delta, alpha
):
    def bound(*counts, delta=delta, alpha=alpha):
        return epsilon_of_errors(*counts, TRIALS, delta=delta, alpha=alpha)

    found = bound(positives, negatives)
    assert 0 <= found <= epsilon_ceiling(TRIALS, delta=delta, alpha=alpha) < math.inf
    assert bound(positives + 1, negatives) <= found
    assert bound(negatives, positives + 1) <= found
    assert bound(positives, negatives, delta=delta + 0.05) <= found
    assert bound(positives, negatives, alpha=alpha / 2) <= found


@pytest.mark.parametrize("delta", [0.0, 0.02])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 2.0])
def test_exact_coverage_for_every_pair_of_rates_on_the_boundary(epsilon, delta):
    counts = np.arange(TRIALS + 1)
    bounds = epsilon_of_errors(counts[:, np.newaxis], counts, TRIALS, delta=delta, alpha=0.05)
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


def test_ties_belong_to_the_alternative_and_what_is_no_number_errs_there():
    assert count_errors([0, 1, 1, 2], [0, 1, 1, 2], 1) == (3, 1)
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
    bound = epsilon_lower(null, alternative, 0.5, delta=1e-5, alpha=0.1)
    assert bound.value == epsilon_of_errors(10, 300, 1000, delta=1e-5, alpha=0.1)
    assert bound.ceiling == epsilon_ceiling(1000, delta=1e-5, alpha=0.1)
    assert bound.evidence == {
        "false_positives": 10,
        "false_negatives": 300,
        "direction": "false positives",
    }
    assert (bound.method, bound.thresholds) == ("clopper-pearson", (0.5, 0.5))
    assert not bound.flawless


def test_separated_hypotheses_reach_the_ceiling_and_the_other_direction_is_named():
    separated = epsilon_lower([0] * 50, [1] * 50, 1, delta=0)
    assert separated.flawless
    assert separated.value == separated.ceiling
    null, alternative = [1] * 20 + [0] * 30, [1] * 50
    assert epsilon_lower(null, alternative, 1, delta=0).evidence["direction"] == "false negatives"


def test_numbers_of_trials_may_be_unequal():
    found = epsilon_lower([0] * 90 + [1] * 10, [1] * 180 + [0] * 20, 1, delta=0, alpha=0.05)
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
        epsilon_lower(null, alternative, 0, **{"delta": 0.0, **options})


def test_bound_inverts_the_binomial_tail_of_randomised_response():
    """Where right guesses are as probable as e^ε to one, so many or more have probability α."""

    def tail(epsilon):
        return binom.sf(180 - 1, 200, 1 / (1 + math.exp(-epsilon))) - 0.05

    bound = epsilon_of_guesses(180, 20, RELEASES, delta=0, alpha=0.05)
    assert bound == pytest.approx(brentq(tail, 0, 10))


def test_no_wrong_guess():
    """All of r are right with probability qʳ."""
    rate = 0.05 ** (1 / 300)
    bound = epsilon_of_guesses(300, 0, RELEASES, delta=0, alpha=0.05)
    assert bound == pytest.approx(math.log(rate / (1 - rate)))
    assert guesses_ceiling(300, delta=0, alpha=0.05) == pytest.approx(float(bound))


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3, 0.1])
def test_spared_guesses_are_the_fewest_at_their_price(delta):
    spared, left = spared_guesses(RELEASES, delta, 0.05)
    price = binom.sf(spared, RELEASES, delta)
    assert price <= 0.01 * 0.05
    assert spared == 0 or binom.sf(spared - 1, RELEASES, delta) > 0.01 * 0.05
    assert left == pytest.approx(0.05 - price)


def test_right_guesses_owed_to_delta_are_left_out():
    spared, left = spared_guesses(RELEASES, 1e-5, 0.05)
    assert spared == 2
    bound = epsilon_of_guesses(300, 4, RELEASES, delta=1e-5, alpha=0.05)
    assert bound == epsilon_of_guesses(298, 4, RELEASES, delta=0, alpha=left)
    assert epsilon_of_guesses(2, 0, RELEASES, delta=1e-5, alpha=0.05) == 0
    assert epsilon_of_guesses(0, 0, RELEASES, delta=0, alpha=0.05) == 0


@given(GUESSES, GUESSES)
def test_bound_rises_with_right_and_falls_with_wrong_guesses(right, wrong):
    settings = {"delta": 1e-5, "alpha": 0.05}
    bound = epsilon_of_guesses(right, wrong, RELEASES, **settings)
    assert 0 <= bound <= guesses_ceiling(RELEASES, **settings) < math.inf
    assert epsilon_of_guesses(right + 1, wrong, RELEASES, **settings) >= bound
    assert epsilon_of_guesses(right, wrong + 1, RELEASES, **settings) <= bound


def test_both_tails_are_guessed_and_nothing_between():
    null = [-3.0] * 30 + [0.0] * 50 + [2.0] * 2
    alternative = [-3.0] * 1 + [0.0] * 40 + [2.0] * 40
    bound = epsilon_two_tailed(null, alternative, (-1.0, 2.0), delta=1e-5, alpha=0.05)
    assert bound.evidence == {"guesses": 73, "wrong": 3, "spared_for_delta": 1}
    assert bound.value == epsilon_of_guesses(70, 3, 163, delta=1e-5, alpha=0.05)
    assert bound.ceiling == guesses_ceiling(163, delta=1e-5, alpha=0.05)
    assert (bound.method, bound.thresholds) == ("two-tailed guesses", (-1.0, 2.0))
    assert not bound.flawless
    assert epsilon_two_tailed([0] * 9, [1] * 9, (1, 1), delta=0).flawless


@pytest.mark.parametrize("delta", [1e-5, 0.02])
def test_a_mechanism_that_spends_all_its_delta_is_not_accused(delta):
    """With probability δ it says which hypothesis it is; else it is randomised response of ε = 1.

    Without the term for δ a third of audits exceed the truth at δ = .02.
    """
    audits, epsilon = 4000, 1.0
    rng = np.random.default_rng(0)
    truth = 1 / (1 + math.exp(-epsilon))
    owed = rng.binomial(RELEASES, delta, audits)
    right = rng.binomial(RELEASES - owed, truth) + owed
    settings = {"delta": delta, "alpha": 0.05}
    bounds = epsilon_of_guesses(right, RELEASES - right, RELEASES, **settings)
    assert np.sum(bounds > epsilon) <= binom.ppf(0.999, audits, 0.05)
    without = epsilon_of_guesses(right, RELEASES - right, RELEASES, delta=0, alpha=0.05)
    assert np.mean(without > epsilon) > (0.3 if delta == 0.02 else 0.03)


def test_randomised_response_is_exceeded_as_often_as_said():
    """The bound is exact there, but for whole counts and for δ."""
    audits, rng = 20_000, np.random.default_rng(1)
    right = rng.binomial(RELEASES, 0.75, audits)
    bounds = epsilon_of_guesses(right, RELEASES - right, RELEASES, delta=0, alpha=0.05)
    assert np.mean(bounds > math.log(3)) == pytest.approx(0.049, abs=0.005)


@pytest.mark.parametrize(
    ("mu", "low", "high"), [(0.5, -2.1, 2.6), (1, -2.1, 3.1), (2, -1.5, 3.5), (4, 0.05, 3.95)]
)
def test_gaussian_releases_are_not_accused(mu, low, high):
    """The tails are counted for all audits at once; what lies between them is not guessed."""
    rng, settings = np.random.default_rng(2), {"delta": 1e-5, "alpha": 0.05}
    counts = []
    for mean in (0, mu):
        below, above = norm.cdf(low - mean), norm.sf(high - mean)
        counts.append(rng.multinomial(500, [below, above, 1 - below - above], 2000).T)
    (null_low, null_high, _), (other_low, other_high, _) = counts
    right, wrong = null_low + other_high, null_high + other_low
    exceeded = epsilon_of_guesses(right, wrong, 1000, **settings) > epsilon_gaussian(mu, 1e-5)
    assert np.sum(exceeded) <= binom.ppf(0.999, 2000, 0.05)
