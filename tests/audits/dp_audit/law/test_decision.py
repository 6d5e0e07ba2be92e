from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import chi2, ncx2, norm

from gradaudit.audits.dp_audit.law.bounds import (
    epsilon_lower,
    epsilon_of_guesses,
    guesses_ceiling,
    lower_bound,
    tails_bound,
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
@pytest.mark.parametrize("alpha", [0.05, 0.045])
def test_power(mu, least, alpha):
    law, rng = ProjectionLaw((mu,), 1.0), np.random.default_rng(3)
    decision = best_decision(law, TRIALS, delta=DELTA, alpha=alpha)
    assert decision.method == "two-tailed guesses"
    values = [_play(law, decision, rng, alpha) for _ in range(100)]
    assert np.mean(values) >= least


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


def test_candidates_are_an_even_grid_over_both_hypotheses():
    np.testing.assert_array_equal(
        ProjectionLaw((-1.0, 3.0), 0.5).candidates(), np.linspace(-1 - 4, 3 + 4, 1025)
    )
    np.testing.assert_array_equal(
        ProjectionLaw((2.0,), 0.5).candidates(), np.linspace(0 - 4, 2 + 4, 1025)
    )
    far = np.hypot(0.5 * 20, 6)
    np.testing.assert_allclose(
        DistanceLaw((1.0, 6.0), 0.5, 400).candidates(), np.linspace(10 - 4, far + 4, 1025)
    )
    np.testing.assert_allclose(
        DistanceLaw((3.0,), 0.5, 64).candidates(), np.linspace(0, 5 + 4, 1025)
    )


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
    assert chosen.expected == epsilon_lower(10, 20, 1000, delta=1e-3, alpha=0.1)


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
    assert found == lower_bound(null, alternative, 1.0, delta=0.01, alpha=0.1)
    both = replace(single, method="two-tailed guesses")
    found = both.bound(null, alternative, delta=0.01, alpha=0.1)
    assert found == tails_bound(null, alternative, (1.0, 2.0), delta=0.01, alpha=0.1)


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
