"""The point estimate over all thresholds, and the bound for Gaussian noise, by their textbooks."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import chi2, f, nct, normaltest

from gradaudit.audits.dp_audit.law.estimates import (
    epsilon_point,
    gaussian_bound,
    mu_lower,
)
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.core.statistics.intervals import clopper_pearson_lower, clopper_pearson_upper

DELTA = 1e-3


def _by_hand(null, alternative, delta):
    """Every threshold, both formulas, one by one."""
    trials, best = len(null), (0.0, None)
    for tau in sorted({*null, *alternative}):
        positive = sum(value >= tau for value in null) / trials
        negative = sum(value < tau for value in alternative) / trials
        for denominator, other in ((positive, negative), (negative, positive)):
            if denominator and 1 - delta - other > 0:
                best = max(best, (math.log((1 - delta - other) / denominator), tau))
    return best


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("decimals", [1, 12])
def test_estimate_is_the_largest_over_all_thresholds(seed, decimals):
    null, alternative = np.random.default_rng(seed).normal(size=(2, 80)).round(decimals)
    estimate = epsilon_point(null, alternative + 1, delta=DELTA)
    value, threshold = _by_hand(list(null), list(alternative + 1), DELTA)
    assert (estimate.value, estimate.threshold) == (pytest.approx(value), threshold)


@pytest.mark.parametrize(
    ("null", "alternative", "direction", "errors"),
    [
        ((90, 10), (40, 60), "false positives", (10, 40)),
        ((60, 40), (10, 90), "false negatives", (40, 10)),
        ((90, 10), (20, 30), "false positives", (10, 20)),
        ((60, 40), (10, 190), "false negatives", (40, 10)),
    ],
)
def test_value_and_interval_are_the_formula_at_both_rates_and_at_their_ends(
    null, alternative, direction, errors
):
    """Of as many trials under each hypothesis, or of unequal numbers."""
    samples = np.repeat([0, 1], null), np.repeat([0, 1], alternative)
    estimate = epsilon_point(*samples, delta=DELTA, confidence=0.9)
    assert (estimate.direction, estimate.threshold) == (direction, 1)
    assert (estimate.false_positives, estimate.false_negatives) == errors
    counts = list(zip(errors, (sum(null), sum(alternative)), strict=True))
    denominator, other = counts if direction == "false positives" else counts[::-1]
    value = math.log((1 - DELTA - other[0] / other[1]) / (denominator[0] / denominator[1]))
    assert estimate.value == pytest.approx(value)
    ends = [
        math.log((1 - DELTA - limit(*other, 0.05)) / limit(*denominator, 0.05))
        for limit in (clopper_pearson_upper, clopper_pearson_lower)
    ]
    assert estimate.interval == pytest.approx(ends, rel=1e-9)
    assert estimate.confidence == 0.9


def test_estimate_is_finite_where_the_formula_is_not():
    estimate = epsilon_point(np.arange(50), 100 + np.arange(50), delta=0)
    assert estimate.value == pytest.approx(math.log(50))
    assert estimate.interval[0] <= estimate.value <= estimate.interval[1] < math.inf


def test_refuses_a_hypothesis_without_trials():
    with pytest.raises(ValueError, match="both hypotheses"):
        epsilon_point([1], [], delta=0)


@pytest.mark.parametrize("trials", [20, 500, 5000])
@pytest.mark.parametrize("shift", [0.1, 2.0, 20.0])
def test_limit_inverts_the_noncentral_t(shift, trials):
    null, alternative = np.random.default_rng(2).normal(size=(2, trials))
    limit = float(mu_lower(null, alternative + shift, alpha=0.05))
    spread = np.sqrt((null.var(ddof=1) + alternative.var(ddof=1)) / 2)
    root = np.sqrt(trials / 2)
    observed = (alternative.mean() + shift - null.mean()) / spread * root
    degrees, ends = 2 * trials - 2, (observed / 2 - 10, observed + 1)
    exact = brentq(lambda noncentrality: nct.sf(observed, degrees, noncentrality) - 0.05, *ends)
    assert limit == pytest.approx(max(exact / root, 0), rel=1e-6)


@pytest.mark.parametrize("trials", [20, 500, 5000])
def test_a_gap_far_beyond_the_noise_is_known_to_the_spread_alone(trials):
    """There the limit is the gap over the largest deviation that χ² allows."""
    null, alternative = np.random.default_rng(2).normal(size=(2, trials))
    limit = float(mu_lower(null, alternative + 1e4, alpha=0.05))
    degrees = 2 * trials - 2
    spread = np.sqrt((null.var(ddof=1) + alternative.var(ddof=1)) / 2)
    gap = (alternative.mean() + 1e4 - null.mean()) / spread
    assert limit == pytest.approx(gap * np.sqrt(chi2.ppf(0.05, degrees) / degrees), rel=1e-3)


def test_limits_of_many_audits_at_once():
    null, alternative = np.random.default_rng(0).normal(size=(2, 5, 40))
    together = mu_lower(null, alternative + 2, alpha=0.05)
    each = [mu_lower(*pair, alpha=0.05) for pair in zip(null, alternative + 2, strict=True)]
    np.testing.assert_allclose(together, each, rtol=1e-12)


def test_bound_does_not_depend_on_location_and_scale():
    null, alternative = np.random.default_rng(1).normal(size=(2, 200))
    bound = mu_lower(null, alternative + 1, alpha=0.05)
    moved = mu_lower(3 + 0.01 * null, 3 + 0.01 * (alternative + 1), alpha=0.05)
    assert moved == pytest.approx(float(bound), rel=1e-9)
    assert mu_lower(null, alternative - 5, alpha=0.05) == 0


def test_epsilon_is_that_of_the_limit():
    null, alternative = np.random.default_rng(3).normal(size=(2, 1000))
    bound = gaussian_bound(null, alternative + 3, delta=1e-5, alpha=0.1)
    assert bound.mu == float(mu_lower(null, alternative + 3, alpha=0.1))
    assert bound.epsilon == epsilon_gaussian(bound.mu, 1e-5)
    assert bound.mu < bound.mu_estimate
    assert bound.mu_estimate == pytest.approx(3, abs=0.3)
    assert min(bound.normality_p, bound.equal_variance_p) > 0.01


def test_numbers_of_trials_may_be_unequal():
    rng = np.random.default_rng(4)
    null, alternative = rng.normal(size=150), rng.normal(size=100) + 2
    bound = float(mu_lower(null, alternative, alpha=0.05))
    spread = np.sqrt((149 * null.var(ddof=1) + 99 * alternative.var(ddof=1)) / 248)
    per_unit = (1 / 150 + 1 / 100) ** -0.5
    observed = (alternative.mean() - null.mean()) / spread * per_unit
    assert nct.sf(observed, 248, bound * per_unit) == pytest.approx(0.05, rel=1e-6)
    assert gaussian_bound(null, alternative, delta=1e-5, alpha=0.05).mu == bound


def test_power():
    null, alternative = np.random.default_rng(5).normal(size=(2, 100, 5000))
    epsilons = epsilon_gaussian(mu_lower(null, alternative + 6.4, alpha=0.05), 1e-5)
    assert epsilon_gaussian(6.4, 1e-5) == pytest.approx(47, abs=0.1)
    assert np.mean(epsilons) >= 44


def _releases(rng, mu, trials):
    null, alternative = rng.normal(size=(2, trials))
    return null, alternative + mu


@pytest.mark.slow
def test_checks_are_uniform_under_the_declared_law():
    rng = np.random.default_rng(6)
    bounds = [gaussian_bound(*_releases(rng, 2, 300), delta=1e-5) for _ in range(200)]
    for name in ("normality_p", "equal_variance_p"):
        rejected = np.mean([getattr(bound, name) < 0.05 for bound in bounds])
        assert rejected == pytest.approx(0.05, abs=0.035)


def test_checks_see_other_laws():
    rng = np.random.default_rng(7)
    laplace = gaussian_bound(*rng.laplace(size=(2, 1000)), delta=1e-5)
    assert laplace.normality_p < 1e-6
    null, alternative = _releases(rng, 1, 1000)
    assert gaussian_bound(null, 2 * alternative, delta=1e-5).equal_variance_p < 1e-6


@pytest.mark.parametrize(
    ("null", "alternative", "message"),
    [
        (np.zeros(19), np.ones(19), "at least 20 trials, not 19"),
        (np.zeros(30), np.ones(30), "vary from release to release"),
    ],
)
def test_refusals(null, alternative, message):
    with pytest.raises(ValueError, match=message):
        gaussian_bound(null, alternative, delta=1e-5)


def test_checks_and_estimate_are_the_textbooks():
    """Fisher's two-sided F test, K² of what is left of both means, the pooled deviation."""
    rng = np.random.default_rng(8)
    null, alternative = rng.normal(size=70), 1.2 * rng.normal(size=40) + 1
    for groups in ((null, alternative), (alternative, null)):
        bound = gaussian_bound(*groups, delta=1e-3, alpha=0.2)
        ratio = groups[1].var(ddof=1) / groups[0].var(ddof=1)
        law = f(len(groups[1]) - 1, len(groups[0]) - 1)
        assert bound.equal_variance_p == pytest.approx(2 * min(law.cdf(ratio), law.sf(ratio)))
        left = np.concatenate([group - group.mean() for group in groups])
        assert bound.normality_p == pytest.approx(normaltest(left).pvalue)
        pooled = sum((group - group.mean()) @ (group - group.mean()) for group in groups) / 108
        gap = groups[1].mean() - groups[0].mean()
        assert bound.mu_estimate == pytest.approx(gap / np.sqrt(pooled))
    assert gaussian_bound(null[:20], alternative, delta=1e-3).mu >= 0
