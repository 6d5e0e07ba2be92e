import numpy as np
import pytest
from scipy.special import ndtr

from gradaudit.dp.bounds import epsilon_of_guesses, guesses_ceiling
from gradaudit.dp.decision import (
    PilotLaw,
    ProjectionLaw,
    best_decision,
    best_tails,
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
