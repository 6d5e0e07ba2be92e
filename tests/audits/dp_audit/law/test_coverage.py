"""How often bounds exceed the truth, over 1,000 simulated audits of mechanisms of known epsilon.

A bound at 95 % that errs in exactly 5 % of them exceeds the truth at most ``TOLERATED`` times with
probability 0.999.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import binom

from gradaudit.audits.dp_audit.law.bounds import (
    count_errors,
    epsilon_of_errors,
    epsilon_of_rates,
)
from gradaudit.audits.dp_audit.law.decision import PilotLaw, ProjectionLaw, best_threshold
from gradaudit.audits.dp_audit.law.estimates import epsilon_point, mu_lower
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.core.statistics.intervals import clopper_pearson_upper

AUDITS, CHUNK = 1000, 200
ALPHA, DELTA = 0.05, 1e-5
TOLERATED = int(binom.ppf(0.999, AUDITS, ALPHA))
PILOT = 200


@dataclass(frozen=True)
class Mechanism:
    """A mechanism by the law of its statistic; ``draw`` takes a shape and a generator."""

    name: str
    epsilon: float
    draw: Callable[[tuple[int, ...], np.random.Generator], tuple[np.ndarray, np.ndarray]]


def normal(shift):
    def draw(shape, rng):
        return rng.standard_normal(shape), rng.standard_normal(shape) + shift

    return draw


def laplace(shape, rng):
    """|n| − |n − 1| of Laplace noise n, and minus that under the alternative."""
    null, alternative = np.clip(2 * rng.laplace(size=(2, *shape)) - 1, -1, 1)
    return null, -alternative


def laplace_projection(shape, rng):
    return rng.laplace(size=shape), 1 + rng.laplace(size=shape)


def randomised_response(shape, rng):
    return (rng.random(shape) < 0.25).astype(float), (rng.random(shape) < 0.75).astype(float)


NULL = Mechanism("null", 0.0, normal(0))
LAPLACE = Mechanism("laplace", 1 + 2 * math.log1p(-DELTA), laplace)
PROJECTED = Mechanism("laplace projection", LAPLACE.epsilon, laplace_projection)
RESPONSE = Mechanism("randomised response", math.log((0.75 - DELTA) / 0.25), randomised_response)
GAUSSIAN = Mechanism("gaussian", epsilon_gaussian(1.0, DELTA), normal(1))

MECHANISMS = [pytest.param(case, id=case.name) for case in (NULL, LAPLACE, RESPONSE, GAUSSIAN)]
TRIALS = 1000


def audits(mechanism, seed):
    """The releases' statistics of all audits, a chunk at a time."""
    rng = np.random.default_rng(seed)
    for _ in range(AUDITS // CHUNK):
        yield mechanism.draw((CHUNK, TRIALS), rng)


def exceedances(mechanism, seed, bound):
    """In how many audits ``bound`` of the releases exceeds the true epsilon."""
    return sum(
        int(np.sum(bound(*releases) > mechanism.epsilon)) for releases in audits(mechanism, seed)
    )


def bound_at(threshold):
    def bound(null, alternative):
        counts = count_errors(null, alternative, threshold)
        return epsilon_of_errors(*counts, TRIALS, delta=DELTA, alpha=ALPHA)

    return bound


def gaussian(null, alternative):
    return epsilon_gaussian(mu_lower(null, alternative, alpha=ALPHA), DELTA)


def known_threshold(mechanism):
    """From the law the mechanism declares; the null declares a shift it does not make."""
    if mechanism is RESPONSE:
        return 0.5
    sample = laplace((2000,), np.random.default_rng(0))
    law = PilotLaw(*sample) if mechanism is LAPLACE else ProjectionLaw((1.0,), 1.0)
    return best_threshold(law, TRIALS, delta=DELTA).low


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_threshold_of_the_known_law(mechanism):
    assert exceedances(mechanism, 1, bound_at(known_threshold(mechanism))) <= TOLERATED


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_threshold_of_each_audits_own_pilot(mechanism):
    """Given the pilots, the audits are independent: a pilot may serve one audit of every chunk."""
    rng = np.random.default_rng(2)
    pilots = [PilotLaw(*mechanism.draw((PILOT,), rng)) for _ in range(CHUNK)]
    thresholds = [best_threshold(pilot, TRIALS, delta=DELTA).low for pilot in pilots]
    assert exceedances(mechanism, 3, bound_at(np.asarray(thresholds))) <= TOLERATED


def test_gaussian_bound_where_gaussian_noise_is_declared():
    """It is exact: it errs as often as it says, and overshoots on other noise."""
    assert exceedances(NULL, 4, gaussian) <= TOLERATED
    count = exceedances(GAUSSIAN, 4, gaussian)
    assert binom.ppf(0.001, AUDITS, ALPHA) <= count <= TOLERATED
    assert exceedances(PROJECTED, 6, gaussian) == AUDITS


def test_frequencies_without_a_confidence_limit_are_no_bound():
    def plain(null, alternative):
        counts = count_errors(null, alternative, 0.5)
        return epsilon_of_rates(counts[0] / TRIALS, counts[1] / TRIALS, DELTA)

    assert exceedances(RESPONSE, 7, plain) > 0.4 * AUDITS


def test_the_papers_estimate_exceeds_the_null_in_nearly_every_audit():
    null, alternative = next(audits(NULL, 8))
    points = [epsilon_point(*pair, delta=DELTA) for pair in zip(null, alternative, strict=True)]
    assert np.mean([point.value > 0 for point in points]) > 0.95
    assert np.median([point.value for point in points]) > 1


def test_the_papers_interval_lies_below_the_truth_of_a_gaussian():
    truth, rng = epsilon_gaussian(3.0, DELTA), np.random.default_rng(9)
    points = [epsilon_point(*normal(3)((1000,), rng), delta=DELTA) for _ in range(CHUNK)]
    assert all(point.interval[1] < truth for point in points)


@pytest.mark.parametrize("mechanism", [NULL, PROJECTED], ids=lambda case: case.name)
def test_limit_at_the_best_threshold_of_the_same_releases_fails(mechanism):
    assert exceedances(mechanism, 10, best_of_all_thresholds) > TOLERATED


def best_of_all_thresholds(null, alternative):
    """The Clopper–Pearson limit at whichever threshold makes it largest (no ties)."""
    trials = null.shape[1]
    order = np.argsort(np.concatenate([null, alternative], axis=1), axis=1)
    alternatives_below = np.cumsum(order >= trials, axis=1)
    nulls_above = trials - np.cumsum(order < trials, axis=1)
    limit = clopper_pearson_upper(np.arange(trials + 1), trials, ALPHA / 2)
    rates = limit[nulls_above], limit[alternatives_below]
    both = epsilon_of_rates(*rates, DELTA), epsilon_of_rates(*rates[::-1], DELTA)
    return np.maximum(*both).max(axis=1)
