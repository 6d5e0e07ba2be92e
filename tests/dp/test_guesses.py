"""The two-tailed bound against its own definition and against mechanisms of known epsilon."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom

from gradaudit.dp.bounds import (
    epsilon_of_guesses,
    guesses_ceiling,
    spared_guesses,
    tails_bound,
)
from gradaudit.dp.theory import epsilon_gaussian

RELEASES = 10_000
COUNTS = st.integers(0, 400)


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


@given(COUNTS, COUNTS)
def test_bound_rises_with_right_and_falls_with_wrong_guesses(right, wrong):
    settings = {"delta": 1e-5, "alpha": 0.05}
    bound = epsilon_of_guesses(right, wrong, RELEASES, **settings)
    assert 0 <= bound <= guesses_ceiling(RELEASES, **settings) < math.inf
    assert epsilon_of_guesses(right + 1, wrong, RELEASES, **settings) >= bound
    assert epsilon_of_guesses(right, wrong + 1, RELEASES, **settings) <= bound


def test_both_tails_are_guessed_and_nothing_between():
    null = [-3.0] * 30 + [0.0] * 50 + [2.0] * 2
    alternative = [-3.0] * 1 + [0.0] * 40 + [2.0] * 40
    bound = tails_bound(null, alternative, (-1.0, 2.0), delta=1e-5, alpha=0.05)
    assert bound.evidence == {"guesses": 73, "wrong": 3, "spared_for_delta": 1}
    assert bound.value == epsilon_of_guesses(70, 3, 163, delta=1e-5, alpha=0.05)
    assert bound.ceiling == guesses_ceiling(163, delta=1e-5, alpha=0.05)
    assert (bound.method, bound.thresholds) == ("two-tailed guesses", (-1.0, 2.0))
    assert not bound.flawless
    assert tails_bound([0] * 9, [1] * 9, (1, 1), delta=0).flawless


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
    audits, rng = 2000, np.random.default_rng(2)
    truth, exceeded = epsilon_gaussian(mu, 1e-5), 0
    for _ in range(audits):
        null, alternative = rng.standard_normal((2, 500))
        bound = tails_bound(null, alternative + mu, (low, high), delta=1e-5)
        exceeded += bound.value > truth
    assert exceeded <= binom.ppf(0.999, audits, 0.05)
