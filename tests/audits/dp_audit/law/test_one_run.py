"""Bounds from one run against jax_privacy's numbers, closed forms and the law of Gaussian runs."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from gradaudit.audits.dp_audit.law.one_run_bounds import (
    CanaryGuesses,
    certain_count,
    certain_guesses,
    epsilon_of_canaries,
    epsilon_of_canaries_gaussian,
    epsilon_one_run,
    guessed,
    mu_one_run,
    one_run_ceiling,
    p_value,
)
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.errors import NotApplicable

ORACLE = json.loads((Path(__file__).parent / "one_run_oracle.json").read_text(encoding="utf-8"))
ALPHA, DELTA = 0.05, 1e-5


@pytest.mark.parametrize("row", ORACLE["guesses"], ids=lambda row: "-".join(map(str, row.values())))
def test_bounds_are_those_of_jax_privacy(row: dict[str, Any]) -> None:
    guesses = CanaryGuesses(row["canaries"], row["made"], row["right"])
    at = {"delta": row["delta"], "alpha": row["alpha"]}
    assert epsilon_of_canaries(guesses, **at) == pytest.approx(row["plain"], abs=1e-6)
    assert epsilon_of_canaries_gaussian(guesses, **at) == pytest.approx(row["gaussian"], abs=1e-6)


def test_without_delta_the_p_value_is_a_binomial_tail_and_perfect_guesses_have_a_closed_form() -> (
    None
):
    guesses = CanaryGuesses(100, 40, 31)
    tail = stats.binom.sf(30, 40, 1 / (1 + math.exp(-0.7)))
    assert p_value(guesses, 0.7, 0.0) == pytest.approx(tail, rel=1e-12)
    rate = ALPHA ** (1 / 50)
    perfect = epsilon_of_canaries(CanaryGuesses(50, 50, 50), delta=0.0, alpha=ALPHA)
    assert perfect == pytest.approx(math.log(rate / (1 - rate)), rel=1e-9)
    assert one_run_ceiling(50, delta=0.0, alpha=4 * ALPHA) == pytest.approx(perfect)


def test_delta_is_owed_for_coins_that_guesses_depend_on_together() -> None:
    guesses, epsilon, delta = CanaryGuesses(60, 12, 10), 0.5, 0.003
    law = stats.binom(12, 1 / (1 + math.exp(-epsilon)))
    more = max(sum(law.pmf(10 - k) for k in range(1, i + 1)) / i for i in range(1, 11))
    expected = law.sf(9) + 2 * 60 * delta * more
    assert p_value(guesses, epsilon, delta) == pytest.approx(expected, rel=1e-12)


def test_the_highest_are_guessed_to_be_in_and_the_lowest_out() -> None:
    scores = np.array([5.0, -1.0, 3.0, 0.0, 2.0, -2.0, 4.0, 1.0])
    included = np.array([True, False, False, True, True, True, True, False])
    assert guessed(scores, included, 1.0) == CanaryGuesses(8, 8, 3 + 2)
    assert guessed(scores, included, 0.5) == CanaryGuesses(8, 4, 2 + 1)


def test_no_canary_is_guessed_to_be_both_in_and_out() -> None:
    """Of 43, half is 21.5: a canary in the middle that is guessed about twice is right for sure."""
    scores, included = np.arange(43.0), np.arange(43) >= 21
    assert guessed(scores, included, 1.0) == CanaryGuesses(43, 42, 42)
    assert guessed(scores, ~included, 1.0) == CanaryGuesses(43, 42, 0)


def test_the_most_certain_guesses_are_those_of_the_largest_ratios() -> None:
    ratios = np.array([0.1, -3.0, 2.0, -0.2, 0.3, -1.0, 0.4, -0.5, 0.6, 0.05])
    included = np.array([True, False, True, True, False, True, True, False, True, True])
    assert certain_guesses(ratios, included) == CanaryGuesses(10, 4, 3)  # -3, 2, -1, .6
    assert [certain_count(m) for m in (10, 100, 300, 20_000)] == [4, 40, 60, 720]
    perfect = epsilon_of_canaries(CanaryGuesses(100, 40, 40), delta=DELTA, alpha=ALPHA)
    assert one_run_ceiling(100, delta=DELTA, alpha=ALPHA, unit="record") == perfect


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_bound_of_records_holds_where_the_run_is_randomised_response(epsilon: float) -> None:
    """The law by which the bound is tight: it errs nearly as often as it may, and not more."""
    draws, truth = np.random.default_rng(3), 1 / (1 + math.exp(-epsilon))
    included = draws.random((1000, 400)) < 0.5
    kept = draws.random(included.shape) < truth
    ratios = epsilon * np.where(included == kept, 1.0, -1.0)
    at: dict[str, Any] = {"delta": 1e-12, "alpha": ALPHA, "unit": "record"}
    bounds = [epsilon_one_run(s, i, **at)[0].value for s, i in zip(ratios, included, strict=True)]
    beyond = int((np.array(bounds) > epsilon).sum())
    assert 0.2 * ALPHA * 1000 < beyond <= stats.binom.ppf(0.999, 1000, ALPHA)


def test_nothing_is_shown_by_guesses_that_are_right_by_chance() -> None:
    guesses = CanaryGuesses(100, 100, 55)
    assert epsilon_of_canaries(guesses, delta=DELTA, alpha=ALPHA) == 0
    assert mu_one_run(guesses, alpha=ALPHA) == 0


def test_few_canaries_are_refused() -> None:
    included = np.arange(60) < 19
    with pytest.raises(NotApplicable, match="19 of 60 canaries are on one side; 20 are needed"):
        epsilon_one_run(np.zeros(60), included, delta=DELTA, alpha=ALPHA)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_bounds_hold_in_gaussian_runs(mu: float) -> None:
    """200 runs of 100 canaries: at most as many bounds beyond the truth as chance explains."""
    draws, truth = np.random.default_rng(7), epsilon_gaussian(mu, DELTA)
    beyond, shown = np.zeros(2), np.zeros(2)
    for _ in range(200):
        included = draws.random(100) < 0.5
        scores = draws.standard_normal(100) + mu * included
        bounds = epsilon_one_run(scores, included, delta=DELTA, alpha=ALPHA)
        values = np.array([bound.value for bound in bounds])
        beyond, shown = beyond + (values > truth), shown + values / 200
    assert (beyond <= stats.binom.ppf(0.999, 200, ALPHA)).all()
    assert mu < 3 or shown[1] > shown[0] > 1
