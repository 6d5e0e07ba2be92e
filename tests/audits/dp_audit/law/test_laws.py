import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest

from gradaudit.audits.dp_audit.law.bounds import epsilon_ceiling, epsilon_lower, lower_bound
from gradaudit.audits.dp_audit.law.decision import (
    DistanceLaw,
    PilotLaw,
    ProjectionLaw,
    best_threshold,
)

DELTA = 1e-5
G0 = np.array([0.3, -1.0, 0.0, 2.0, 0.5])
G1 = np.array([0.5, 0.2, 0.4, 1.1, 0.5])
SHIFT = float(np.linalg.norm(G1 - G0))
SIGMA = 0.7


def _projections(releases):
    return (releases - G0) @ (G1 - G0) / SHIFT


def _distances(releases):
    return np.linalg.norm(releases - G0, axis=1)


LAWS = [
    pytest.param(ProjectionLaw((SHIFT,), SIGMA), _projections, id="projection"),
    pytest.param(DistanceLaw((SHIFT,), SIGMA, len(G0)), _distances, id="distance"),
]


@pytest.mark.parametrize(("law", "statistic"), LAWS)
def test_rates_and_samples_are_those_of_real_releases(law, statistic):
    rng = np.random.default_rng(11)
    noise = rng.normal(scale=SIGMA, size=(2, 20_000, len(G0)))
    sampled = law.sample(20_000, rng)
    for hypothesis, centre in enumerate((G0, G1)):
        observed = statistic(centre + noise[hypothesis])

        def below(tau, hypothesis=hypothesis):
            positives, negatives = law.error_rates(tau)
            return negatives if hypothesis else 1 - positives

        assert kstest(observed, below).pvalue > 0.01
        assert kstest(sampled[hypothesis], below).pvalue > 0.01


def test_distance_in_one_element_is_a_folded_normal():
    law = DistanceLaw((2.0,), 1.0, 1)
    null, alternative = law.sample(20_000, np.random.default_rng(2))
    normal = np.random.default_rng(3).normal(size=20_000)
    assert ks_2samp(null, np.abs(normal)).pvalue > 0.01
    assert ks_2samp(alternative, np.abs(normal + 2)).pvalue > 0.01


def test_distance_drowns_in_high_dimension():
    small, large = (DistanceLaw((6.4,), 1.0, elements) for elements in (10, 100_000))
    assert best_threshold(small, 5000, delta=DELTA).expected > 6
    assert best_threshold(large, 5000, delta=DELTA).expected < 0.1


def test_rates_of_a_mixture_are_averaged():
    parts = [ProjectionLaw((shift,), 1.0).error_rates(1.2)[1] for shift in (0.5, 4.0)]
    mixture = ProjectionLaw((0.5, 4.0), 1.0)
    assert mixture.error_rates(1.2)[1] == pytest.approx(np.mean(parts))
    _, alternative = mixture.sample(40_000, np.random.default_rng(5))
    assert np.mean(alternative < 1.2) == pytest.approx(np.mean(parts), abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [1.0, 3.0, 6.4])
def test_recommended_threshold_is_near_the_best_one(mu):
    law, rng = ProjectionLaw((mu,), 1.0), np.random.default_rng(17)
    chosen = best_threshold(law, 5000, delta=DELTA)

    def mean_bound(tau):
        counts = [rng.binomial(5000, rate, 4000) for rate in law.error_rates(tau)]
        return float(np.mean(epsilon_lower(*counts, 5000, delta=DELTA, alpha=0.05)))

    best = max(mean_bound(tau) for tau in np.linspace(mu / 2, mu / 2 + 4, 81))
    assert mean_bound(chosen.low) == pytest.approx(best, abs=0.03)
    assert chosen.expected == pytest.approx(best, abs=0.1)


def test_middle_of_a_plateau():
    chosen = best_threshold(ProjectionLaw((100.0,), 1.0), 1000, delta=DELTA)
    assert chosen.low == pytest.approx(50, abs=1)
    assert chosen.expected == epsilon_ceiling(1000, delta=DELTA, alpha=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "promised"), [(6.4, 6.9), (3.0, 5.4)])
def test_power_of_the_law(mu, promised):
    law = ProjectionLaw((mu,), 1.0)
    assert _mean_bound(law, lambda rng: law, audits=100) >= promised


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "promised"), [(6.4, 6.9), (3.0, 5.4)])
def test_power_of_a_pilot_is_that_of_the_law(mu, promised):
    law = ProjectionLaw((mu,), 1.0)
    assert _mean_bound(law, lambda rng: PilotLaw(*law.sample(500, rng)), audits=100) >= promised


def _mean_bound(law, known, audits):
    rng = np.random.default_rng(23)
    bounds = []
    for _ in range(audits):
        threshold = best_threshold(known(rng), 5000, delta=DELTA).low
        bounds.append(lower_bound(*law.sample(5000, rng), threshold, delta=DELTA).value)
    return np.mean(bounds)


def test_pilot_sees_less_noise_than_claimed_where_the_claimed_law_is_blind():
    claimed, real = ProjectionLaw((1.0,), 1.0), ProjectionLaw((1.0,), 1 / 8)
    rng = np.random.default_rng(29)
    pilot = PilotLaw(*real.sample(200, rng))
    bounds = [
        lower_bound(
            *real.sample(5000, rng), best_threshold(law, 5000, delta=DELTA).low, delta=DELTA
        ).value
        for law in (claimed, pilot)
    ]
    assert bounds[0] == 0
    assert bounds[1] > 7


def test_pilot_of_a_discrete_statistic():
    rng = np.random.default_rng(31)
    null, alternative = (rng.random((2, 300)) < [[0.25], [0.75]]).astype(float)
    assert 0 < best_threshold(PilotLaw(null, alternative), 1000, delta=0).low <= 1


def test_pilot_without_variation():
    law = PilotLaw(np.zeros(10), np.ones(10))
    chosen = best_threshold(law, 1000, delta=0)
    assert 0 < chosen.low <= 1
    assert chosen.expected == epsilon_ceiling(1000, delta=0, alpha=0.05)


def test_pilot_rates_are_the_larger_of_frequency_and_normal_tail():
    law = PilotLaw(np.array([-1.0, 1.0]), np.array([9.0, 11.0]))
    positives, negatives = law.error_rates([1.0, 5.0])
    np.testing.assert_allclose(positives, [0.5, 2.866515718791939e-7])
    np.testing.assert_allclose(negatives, [1.1285884059538324e-19, 2.866515718791939e-7])


def test_distance_far_beyond_computable_tails_recommends_something():
    chosen = best_threshold(DistanceLaw((1e6,), 1.0, 30_000), 1000, delta=DELTA)
    assert 173 < chosen.low < 1e6
