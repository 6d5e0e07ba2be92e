import math
import sys

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, get_epsilon_gaussian
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from gradaudit.audits.dp_audit.law.theory import (
    epsilon_classical,
    epsilon_composed,
    epsilon_gaussian,
    epsilon_laplace,
    log_delta_gaussian,
    mu_of_mechanism,
)
from gradaudit.errors import UsageError

MUS = np.geomspace(1e-3, 100, 26)
DELTAS = np.geomspace(1e-10, 1e-2, 9)


@pytest.mark.slow
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


@pytest.mark.slow
@given(st.floats(0.01, 50), st.floats(1e-9, 0.5))
def test_epsilon_is_the_root_of_delta(mu, delta):
    epsilon = epsilon_gaussian(mu, delta)
    if epsilon == 0:
        assert 2 * norm.cdf(mu / 2) - 1 <= delta
    else:
        assert log_delta_gaussian(epsilon, mu) == pytest.approx(math.log(delta), abs=1e-8)


def test_the_papers_setting():
    assert epsilon_classical(2 / 0.1, 1e-5) == pytest.approx(96.90, abs=5e-3)
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


@pytest.mark.parametrize(("relation", "sensitivity"), [("remove", 1), ("replace", 2)])
def test_full_batches_compose_exactly(relation, sensitivity):
    ours = epsilon_composed(20.0, 100, 1e-5, relation=relation)
    assert ours == pytest.approx(get_epsilon_gaussian(20 / (10 * sensitivity), 1e-5), abs=1e-6)


def test_one_step_is_the_mechanism_itself():
    assert epsilon_composed(0.5, 1, 1e-5) == epsilon_gaussian(4.0, 1e-5)


@pytest.mark.slow
def test_sampled_batches():
    tight = epsilon_composed(1.0, 50, 1e-5, sampling_rate=0.01, relation="remove")
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
    loose = RdpAccountant().compose(step, 50).get_epsilon(1e-5)
    replaced = epsilon_composed(1.0, 50, 1e-5, sampling_rate=0.01)
    assert 0 < tight < loose
    assert tight < replaced
    assert loose < epsilon_composed(1.0, 50, 1e-5, relation="remove") / 10


@pytest.mark.slow
def test_sampling_almost_everything_is_a_full_batch():
    sampled = epsilon_composed(4.0, 4, 1e-5, sampling_rate=1 - 1e-9, relation="remove")
    assert sampled == pytest.approx(epsilon_composed(4.0, 4, 1e-5, relation="remove"), rel=1e-3)


def test_no_noise_has_no_budget():
    assert epsilon_composed(0.0, 10, 1e-5, sampling_rate=0.1) == math.inf


def test_missing_library_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UsageError, match=r"install gradaudit\[accounting\]"):
        epsilon_composed(1.0, 10, 1e-5, sampling_rate=0.1)


@pytest.mark.parametrize(
    ("noise", "steps", "delta", "rate"),
    [(-1, 1, 0.1, 1), (1, 0, 0.1, 1), (1, 1, 0, 1), (1, 1, 0.1, 0), (1, 1, 0.1, 1.5)],
)
def test_values_out_of_range(noise, steps, delta, rate):
    with pytest.raises(UsageError, match="composition needs"):
        epsilon_composed(noise, steps, delta, sampling_rate=rate)


@pytest.mark.parametrize(("mu", "delta"), [(-1.0, 0.1), (1.0, 0.0), (1.0, 1.0), (1.0, 2.0)])
def test_the_classical_formula_refuses_values_out_of_range(mu, delta):
    with pytest.raises(ValueError, match="mu >= 0 and 0 < delta < 1"):
        epsilon_classical(mu, delta)


def test_the_classical_formula_is_too_small_beyond_one() -> None:
    assert epsilon_classical(1 / math.sqrt(2 * math.log(1.25 / 0.2)), 0.2) == pytest.approx(1)
    assert epsilon_classical(0.0, 0.2) == 0
    assert epsilon_classical(20, 1e-5) < epsilon_gaussian(20.0, 1e-5)


def test_ends_of_ranges_are_allowed():
    assert mu_of_mechanism(0, 1) == 0
    assert epsilon_laplace(2.0, 0.5) == 4
    assert epsilon_composed(2.0, 1, 0.5, sampling_rate=1.0, relation="remove") == epsilon_gaussian(
        0.5, 0.5
    )
    for wrong in ((-1, 1), (1, -1)):
        with pytest.raises(ValueError, match="needs clip >= 0, sigma >= 0"):
            mu_of_mechanism(*wrong)
    with pytest.raises(ValueError, match="a scale >= 0"):
        epsilon_laplace(1.0, -1.0)
    with pytest.raises(UsageError, match="composition needs"):
        epsilon_composed(1.0, 1, 1.0)


def test_many_are_one_by_one():
    """Zero, usual and infinite ratios beside each other, of several deltas."""
    mus, deltas = np.array([0.0, 0.1, 1.0, math.inf]), np.array([[1e-5], [0.3]])
    found = epsilon_gaussian(mus, deltas)
    assert found.shape == (2, 4)
    each = [[epsilon_gaussian(float(mu), float(delta)) for mu in mus] for (delta,) in deltas]
    np.testing.assert_array_equal(found, each)
    assert isinstance(each[0][0], float)
