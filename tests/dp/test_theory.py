import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from gradaudit.dp.theory import (
    epsilon_classical,
    epsilon_gaussian,
    epsilon_laplace,
    log_delta_gaussian,
    mu_of_mechanism,
)

MUS = np.geomspace(1e-3, 100, 26)
DELTAS = np.geomspace(1e-10, 1e-2, 9)


def test_epsilon_equals_dp_accounting_over_the_grid():
    mu, delta = np.meshgrid(MUS, DELTAS)
    theirs = [get_epsilon_gaussian(1 / m, d) for m, d in zip(mu.flat, delta.flat, strict=True)]
    np.testing.assert_allclose(
        epsilon_gaussian(mu, delta).ravel(), theirs, rtol=1e-9, atol=1e-9, strict=True
    )


@pytest.mark.parametrize(("epsilon", "mu"), [(0.0, 0.3), (0.5, 1.0), (2.0, 1.0), (4.0, 3.0)])
def test_delta_is_the_hockey_stick_divergence(epsilon, mu):
    def excess(x):
        return max(norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x), 0)

    crossing = epsilon / mu + mu / 2
    divergence = quad(excess, crossing, crossing + 40, epsabs=1e-14)[0]
    assert math.exp(log_delta_gaussian(epsilon, mu)) == pytest.approx(divergence, rel=1e-7)


@given(st.floats(0.01, 50), st.floats(1e-9, 0.5))
def test_epsilon_is_the_root_of_delta(mu, delta):
    epsilon = epsilon_gaussian(mu, delta)
    if epsilon == 0:
        assert 2 * norm.cdf(mu / 2) - 1 <= delta
    else:
        assert log_delta_gaussian(epsilon, mu) == pytest.approx(math.log(delta), abs=1e-8)


def test_the_papers_setting():
    assert epsilon_classical(2 / 0.1, 1e-5).value == pytest.approx(96.90, abs=5e-3)
    one_sided = mu_of_mechanism(2, 0.1, relation="remove")
    assert epsilon_gaussian(one_sided, 1e-5) == pytest.approx(284.39, abs=5e-3)
    assert epsilon_gaussian(mu_of_mechanism(2, 0.1), 1e-5) == pytest.approx(969.65, abs=5e-3)


def test_epsilon_without_a_shift_and_without_noise():
    assert epsilon_gaussian(0.0, 1e-5) == 0
    assert epsilon_gaussian(math.inf, 1e-5) == math.inf
    assert epsilon_gaussian(1e-12, 1e-5) == 0


@pytest.mark.parametrize(("mu", "delta"), [(-1, 0.1), (math.nan, 0.1), (1, 0), (1, 1), (1, 2)])
def test_epsilon_refuses_values_out_of_range(mu, delta):
    with pytest.raises(ValueError, match="mu >= 0 and 0 < delta < 1"):
        epsilon_gaussian(mu, delta)


@pytest.mark.parametrize(
    ("noise", "relation", "records", "expected"),
    [
        ("sum", "replace", 9, 2 * 3 / 0.5),
        ("sum", "remove", 9, 3 / 0.5),
        ("record", "replace", 9, 2 * 3 / (0.5 * 3)),
        ("record", "remove", 9, 3 / (0.5 * 3)),
        ("mean", "replace", 9, 2 * 3 / (9 * 0.5)),
        ("mean", "remove", 9, 3 / (9 * 0.5)),
        ("release", "replace", 9, 2 * 3 / 0.5),
        ("release", "remove", 9, 2 * 3 / 0.5),
        ("release", "remove", 1, 3 / 0.5),
    ],
)
def test_mu_of_mechanism(noise, relation, records, expected):
    mu = mu_of_mechanism(3, 0.5, noise=noise, records=records, relation=relation)
    assert mu == pytest.approx(expected)


def test_mu_without_noise_or_without_a_gradient():
    assert mu_of_mechanism(1, 0) == math.inf
    assert mu_of_mechanism(0, 0) == 0
    with pytest.raises(ValueError, match="records >= 1"):
        mu_of_mechanism(1, 1, records=0)


@pytest.mark.parametrize("noise", ["sum", "record", "mean", "release"])
def test_mu_bounds_every_pair_of_batches(noise):
    rng = np.random.default_rng(3)
    clip, sigma, records = 1.5, 0.7, 4

    def clipped(gradient):
        return gradient / max(1, np.linalg.norm(gradient) / clip)

    def release(batch):
        if noise == "release":
            return clipped(np.mean(batch, axis=0))
        total = np.sum([clipped(gradient) for gradient in batch], axis=0)
        return total / records if noise == "mean" else total

    spread = sigma * math.sqrt(records) if noise == "record" else sigma
    bound = mu_of_mechanism(clip, sigma, noise=noise, records=records)
    others = rng.normal(size=(records - 1, 3))
    observed = []
    for _ in range(200):
        first, second = rng.normal(size=(2, 3)) * 100
        pair = release([first, *others]), release([second, *others])
        observed.append(np.linalg.norm(pair[1] - pair[0]) / spread)
    opposite = release([np.full(3, 1e6), *others]) - release([np.full(3, -1e6), *others])
    assert max(observed) <= bound * (1 + 1e-12)
    assert np.linalg.norm(opposite) / spread == pytest.approx(bound, rel=1e-5)


def test_laplace_pair():
    assert epsilon_laplace(3.0, 1.5) == 2
    assert epsilon_laplace(0.0, 0.0) == 0
    assert epsilon_laplace(1.0, 0.0) == math.inf
    with pytest.raises(ValueError, match="distance >= 0"):
        epsilon_laplace(-1.0, 1.0)


def test_classical_formula_says_where_its_theorem_ends():
    assert epsilon_classical(0.1, 1e-5).in_range
    assert not epsilon_classical(20, 1e-5).in_range
    too_small = epsilon_classical(20, 1e-5).value
    assert too_small < epsilon_gaussian(20.0, 1e-5)
