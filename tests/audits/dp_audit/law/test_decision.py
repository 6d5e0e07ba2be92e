from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import chi2, kstest, ncx2, norm

from gradaudit.audits.dp_audit.law.bounds import (
    epsilon_ceiling,
    epsilon_lower,
    epsilon_of_errors,
    epsilon_of_guesses,
    epsilon_two_tailed,
    guesses_ceiling,
)
from gradaudit.audits.dp_audit.law.decision import (
    Decision,
    DistanceLaw,
    PilotLaw,
    ProjectionLaw,
    _best_pair,
    best_decision,
    best_tails,
    best_threshold,
)

DELTA, TRIALS = 1e-5, 5000
LEAST = {0.5: 1.0, 1.0: 2.25, 2.0: 4.4, 4.0: 7.0}
"""What 2 × 5,000 releases must show on average, by the shift in deviations."""


@pytest.mark.parametrize("mu", LEAST)
def test_tails_are_the_best_of_all_pairs(mu):
    found = best_tails(ProjectionLaw((mu,), 1.0), TRIALS, delta=DELTA)
    grid = np.linspace(-4, mu + 4, 201)
    low, high = (side.ravel() for side in np.meshgrid(grid, grid, indexing="ij"))
    low, high = low[low <= high], high[low <= high]
    right = TRIALS * (ndtr(mu - high) + ndtr(low))
    wrong = TRIALS * (ndtr(-high) + ndtr(low - mu))
    every = epsilon_of_guesses(right, wrong, 2 * TRIALS, delta=DELTA, alpha=0.05)
    assert found.expected == pytest.approx(every.max(), abs=0.005)
    assert found.low + found.high == pytest.approx(mu, abs=0.06), "both tails alike"


@pytest.mark.parametrize(("mu", "least"), LEAST.items())
def test_power(mu, least):
    law, rng = ProjectionLaw((mu,), 1.0), np.random.default_rng(3)
    decision = best_decision(law, TRIALS, delta=DELTA, alpha=0.045)
    assert decision.method == "two-tailed guesses"
    values = [_play(law, decision, rng, 0.045) for _ in range(100)]
    assert np.mean(values) >= least


@pytest.mark.slow
def test_power_from_pilots():
    law, rng = ProjectionLaw((1.0,), 1.0), np.random.default_rng(4)
    values = []
    for _ in range(30):
        decision = best_decision(PilotLaw(*law.sample(1250, rng)), TRIALS, delta=DELTA)
        values.append(_play(law, decision, rng, 0.05))
    assert np.mean(values) >= 2.2


def _play(law, decision, rng, alpha):
    others = rng.binomial(2 * TRIALS, 0.5)
    null, _ = law.sample(2 * TRIALS - others, rng)
    _, alternative = law.sample(others, rng)
    return decision.bound(null, alternative, delta=DELTA, alpha=alpha).value


def test_far_apart_hypotheses_are_told_in_the_middle():
    tails = best_tails(ProjectionLaw((100.0,), 1.0), 1000, delta=DELTA)
    assert 10 < tails.low <= tails.high < 90
    assert tails.expected == guesses_ceiling(2000, delta=DELTA, alpha=0.05)
    single = best_threshold(ProjectionLaw((100.0,), 1.0), 1000, delta=DELTA)
    assert single.low == pytest.approx(50, abs=1)
    assert single.expected == epsilon_ceiling(1000, delta=DELTA, alpha=0.05)


def test_of_two_bounds_the_better_is_decided_for():
    law = ProjectionLaw((0.001,), 1.0)
    decision = best_decision(law, 1000, delta=DELTA)
    assert (decision.method, decision.expected) == ("clopper-pearson", 0.0)
    assert decision.bound([0], [0], delta=DELTA, alpha=0.05).method == "clopper-pearson"


def test_a_pilot_of_two_values():
    null, alternative = np.repeat([0.0, 1.0], [225, 75]), np.repeat([0.0, 1.0], [75, 225])
    decision = best_decision(PilotLaw(null, alternative), 1000, delta=DELTA)
    assert decision.method == "two-tailed guesses"
    assert 0 < decision.low <= decision.high <= 1
    assert 0 < best_threshold(PilotLaw(null, alternative), 1000, delta=0).low <= 1


@pytest.mark.parametrize(
    ("law", "low", "high"),
    [
        (ProjectionLaw((-1.0, 3.0), 0.5), -1 - 4, 3 + 4),
        (ProjectionLaw((2.0,), 0.5), 0 - 4, 2 + 4),
        (DistanceLaw((1.0, 6.0), 0.5, 400), 10 - 4, np.hypot(0.5 * 20, 6) + 4),
        (DistanceLaw((3.0,), 0.5, 64), 0, 5 + 4),
    ],
)
def test_candidates_are_an_even_grid_over_both_hypotheses(law, low, high):
    np.testing.assert_allclose(law.candidates(), np.linspace(low, high, 1025))


def test_candidates_of_a_pilot_are_what_it_saw_and_a_grid_beyond():
    """Means and deviations of 1 and 1, and of 12 and 2."""
    null, alternative = np.array([0.0, 2.0]), np.array([10.0, 14.0])
    found = PilotLaw(null, alternative).candidates()
    np.testing.assert_array_equal(found, np.union1d(np.linspace(-7, 28, 257), [0, 2, 10, 14]))
    many = PilotLaw(np.arange(1000.0), np.arange(1000.0)).candidates()
    ends = 499.5 + 8 * np.sqrt((1000**2 - 1) / 12) * np.array([-1, 1])
    seen = np.setdiff1d(many, np.linspace(*ends, 257))
    assert (len(seen), seen.min(), seen.max()) == (514, 0, 999)


def _quantiles(trials, spread=1.0, mean=0.0):
    """A sample as normal as can be, of just this deviation."""
    drawn = ndtri((np.arange(trials) + 0.5) / trials)
    return mean + spread * drawn / drawn.std()


@pytest.mark.parametrize(
    ("trials", "ratio", "alike"),
    [
        ((200, 200), 1.19, True),
        ((200, 200), 1.21, False),
        ((200, 200), 1 / 1.19, True),
        ((200, 200), 1 / 1.21, False),
        ((200, 400), 1.165, True),
        ((200, 400), 1.18, False),
        ((400, 200), 1.18, False),
    ],
)
def test_normal_pilots_have_one_deviation_where_both_may_be_the_same(trials, ratio, alike):
    """2.6 standard errors √(1/2n + 1/2m) of the logarithm: ratios of 1.2018 and of 1.1726."""
    law = PilotLaw(_quantiles(trials[0]), _quantiles(trials[1], ratio, 5.0))
    spreads = [np.sqrt((1 + ratio**2) / 2)] * 2 if alike else [1, ratio]
    taus = np.array([-1.0, 2.5, 7.0])
    positives, negatives = law.error_rates(taus)
    np.testing.assert_allclose(positives, ndtr(-taus / spreads[0]), rtol=1e-9)
    np.testing.assert_allclose(negatives, ndtr((taus - 5) / spreads[1]), rtol=1e-9)


@pytest.mark.parametrize(
    ("null", "alternative"),
    [
        (_quantiles(99), _quantiles(300, 1.0, 2.0)),
        (_quantiles(300), _quantiles(99, 1.0, 2.0)),
        (_quantiles(300), np.repeat([1.0, 3.0], 150)),
        (np.repeat([-1.0, 1.0], 150), _quantiles(300, 1.0, 2.0)),
        (np.zeros(300), _quantiles(300, 1.0, 2.0)),
    ],
    ids=["few", "few-alternatives", "two-alternatives", "two-values", "still"],
)
def test_other_pilots_give_the_larger_of_frequency_and_normal_tail(null, alternative):
    taus = np.array([-1.5, -1.0, 0.0, 0.7, 1.0, 3.0, 5.0])
    positives, negatives = PilotLaw(null, alternative).error_rates(taus)
    above, below = ((null >= t).mean() for t in taus), ((alternative < t).mean() for t in taus)
    with np.errstate(divide="ignore"):
        tails = (
            norm.sf((taus - null.mean()) / max(null.std(), 1e-300)),
            norm.cdf((taus - alternative.mean()) / alternative.std()),
        )
    np.testing.assert_allclose(positives, np.maximum(list(above), tails[0]), atol=1e-12)
    np.testing.assert_allclose(negatives, np.maximum(list(below), tails[1]), atol=1e-12)


def test_a_hundred_normal_pilots_speak_for_themselves():
    law = PilotLaw(_quantiles(100), _quantiles(100, 1.0, 9.0))
    assert law.error_rates(4.0)[0] == pytest.approx(ndtr(-4.0), rel=1e-9)
    assert law.error_rates(-0.1)[0] == pytest.approx(ndtr(0.1), rel=1e-9)


def test_of_equal_thresholds_the_middle_one_is_taken():
    class Steps:
        def candidates(self):
            return np.arange(8.0)

        def error_rates(self, tau):
            inside = (tau >= 2) & (tau < 7)
            return np.where(inside, 0.01, 0.5), np.where(inside, 0.02, 0.5)

    chosen = best_threshold(Steps(), 1000, delta=1e-3, alpha=0.1)
    assert (chosen.method, chosen.low, chosen.high) == ("clopper-pearson", 4.0, 4.0)
    assert chosen.expected == epsilon_of_errors(10, 20, 1000, delta=1e-3, alpha=0.1)


def test_of_equal_pairs_that_nearest_to_their_mean_is_taken():
    """Pairs within (2, 6): seven of 0 to 8 steps are in reach, low never above high."""

    def expected(pairs):
        assert (pairs[0] <= pairs[1]).all()
        return np.where((pairs[0] >= 2) & (pairs[1] <= 6), 1.0, 0.5)

    places = np.arange(9)
    chosen, value = _best_pair(expected, places, places)
    inside = np.array([(a, b) for a in range(2, 7) for b in range(a, 7)])
    apart = np.abs(inside - inside.mean(axis=0)).sum(axis=1)
    assert value == 1.0
    assert tuple(chosen) == tuple(inside[apart.argmin()])
    exact, value = _best_pair(lambda pairs: -np.hypot(*(pairs.T - [3, 5]).T), places, places)
    assert (tuple(exact), value) == ((3, 5), 0.0)


def test_of_few_candidates_every_pair_is_tried():
    """The best pair has one end at the first candidate of all, or at the last."""

    @dataclass(frozen=True)
    class Few:
        positives: tuple[float, ...]
        negatives: tuple[float, ...]

        def candidates(self):
            return np.arange(float(len(self.positives)))

        def error_rates(self, tau):
            at = np.asarray(tau, int)
            return np.array(self.positives)[at], np.array(self.negatives)[at]

    falling, rising = (1.0, 0.6, 0.5, 0.3, 0.01), (0.0, 0.4, 0.5, 0.6, 0.7)
    upper = best_tails(Few(falling, rising), 1000, delta=DELTA)
    assert (upper.low, upper.high) == (0.0, 4.0)
    assert upper.expected == epsilon_of_guesses(300, 10, 2000, delta=DELTA, alpha=0.05)
    lower = best_tails(
        Few((1.0, 0.4, 0.2, 0.1, 0.0), (0.0, 0.01, 0.5, 0.9, 1.0)), 1000, delta=DELTA
    )
    assert (lower.low, lower.high) == (1.0, 4.0)
    assert lower.expected == epsilon_of_guesses(600, 10, 2000, delta=DELTA, alpha=0.05)


@pytest.mark.parametrize("best", [131, 129])
def test_a_step_of_a_law_is_found_between_candidates_of_the_coarse_grid(best):
    """Just before it where alternatives begin, or behind where the null ends; grids of 4 and 1."""

    class Step:
        def candidates(self):
            return np.arange(257.0)

        def error_rates(self, tau):
            slope, far = 1e-3 * np.abs(tau - best), 0.9
            if best == 131:
                return 0.01 + slope * (tau <= best), np.where(tau > best, far, 0.0)
            return np.where(tau < best, far, 0.0), 0.01 + slope * (tau >= best)

    found = best_tails(Step(), 1000, delta=DELTA)
    assert (found.low, found.high) == (best, best)
    assert found.expected == epsilon_of_guesses(1990, 10, 2000, delta=DELTA, alpha=0.05)


def test_bounds_are_asked_for_as_they_were_decided():
    null, alternative = np.array([0.0] * 40 + [3.0] * 4), np.array([0.0] * 5 + [3.0] * 45)
    single = Decision("clopper-pearson", 1.0, 2.0, 0.0)
    found = single.bound(null, alternative, delta=0.01, alpha=0.1)
    assert found == epsilon_lower(null, alternative, 1.0, delta=0.01, alpha=0.1)
    both = replace(single, method="two-tailed guesses")
    found = both.bound(null, alternative, delta=0.01, alpha=0.1)
    assert found == epsilon_two_tailed(null, alternative, (1.0, 2.0), delta=0.01, alpha=0.1)


@pytest.mark.parametrize("elements", [1, 7])
def test_rates_of_distances_are_those_of_chi_squares(elements):
    law = DistanceLaw((0.5, 2.0), 0.4, elements)
    taus = np.array([-1.0, 0.0, 0.6, 1.5])
    positives, negatives = law.error_rates(taus)
    squares = (np.maximum(taus, 0) / 0.4) ** 2
    np.testing.assert_allclose(positives, chi2.sf(squares, elements), rtol=1e-9)
    misses = [ncx2.cdf(squares, elements, (s / 0.4) ** 2) for s in (0.5, 2.0)]
    np.testing.assert_allclose(negatives, np.mean(misses, axis=0), rtol=1e-7, atol=1e-15)


def test_rates_of_projections_are_those_of_normal_laws():
    law, taus = ProjectionLaw((0.5, 2.0), 0.4), np.array([-1.0, 0.6, 1.5])
    positives, negatives = law.error_rates(taus)
    np.testing.assert_allclose(positives, norm.sf(taus, scale=0.4), rtol=1e-12)
    misses = [norm.cdf(taus, shift, 0.4) for shift in (0.5, 2.0)]
    np.testing.assert_allclose(negatives, np.mean(misses, axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    "law",
    [
        ProjectionLaw((0.5, 4.0), 0.7),
        DistanceLaw((0.5, 2.0), 0.4, 7),
        DistanceLaw((2.0,), 1.0, 1),
    ],
)
def test_samples_follow_the_rates(law):
    null, alternative = law.sample(20_000, np.random.default_rng(11))
    assert kstest(null, lambda tau: 1 - law.error_rates(tau)[0]).pvalue > 0.01
    assert kstest(alternative, lambda tau: law.error_rates(tau)[1]).pvalue > 0.01


def test_distance_drowns_in_high_dimension():
    small, large = (DistanceLaw((6.4,), 1.0, elements) for elements in (10, 100_000))
    assert best_threshold(small, TRIALS, delta=DELTA).expected > 6
    assert best_threshold(large, TRIALS, delta=DELTA).expected < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("mu", [1.0, 6.4])
def test_recommended_threshold_is_near_the_best_one(mu):
    law, rng = ProjectionLaw((mu,), 1.0), np.random.default_rng(17)
    chosen = best_threshold(law, TRIALS, delta=DELTA)

    def mean_bound(tau):
        counts = [rng.binomial(TRIALS, rate, 4000) for rate in law.error_rates(tau)]
        return float(np.mean(epsilon_of_errors(*counts, TRIALS, delta=DELTA, alpha=0.05)))

    best = max(mean_bound(tau) for tau in np.linspace(mu / 2, mu / 2 + 4, 81))
    assert mean_bound(chosen.low) == pytest.approx(best, abs=0.03)
    assert chosen.expected == pytest.approx(best, abs=0.1)


def test_pilot_sees_less_noise_than_claimed_where_the_claimed_law_is_blind():
    claimed, real = ProjectionLaw((1.0,), 1.0), ProjectionLaw((1.0,), 1 / 8)
    rng = np.random.default_rng(29)
    pilot = PilotLaw(*real.sample(200, rng))
    bounds = [
        epsilon_lower(
            *real.sample(TRIALS, rng), best_threshold(law, TRIALS, delta=DELTA).low, delta=DELTA
        ).value
        for law in (claimed, pilot)
    ]
    assert bounds[0] == 0
    assert bounds[1] > 7


def test_pilot_without_variation():
    law = PilotLaw(np.zeros(10), np.ones(10))
    chosen = best_threshold(law, 1000, delta=0)
    assert 0 < chosen.low <= 1
    assert chosen.expected == epsilon_ceiling(1000, delta=0, alpha=0.05)


def test_distance_far_beyond_computable_tails_recommends_something():
    chosen = best_threshold(DistanceLaw((1e6,), 1.0, 30_000), 1000, delta=DELTA)
    assert 173 < chosen.low < 1e6
