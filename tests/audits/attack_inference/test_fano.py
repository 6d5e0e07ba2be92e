"""Fano's bound against exhaustive solutions, and against the best adversary of known channels."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from gradaudit.audits.attack_inference.fano import Channel, fano_bound, fano_error
from gradaudit.core.statistics.laws import entropy


def uncertainty(error: np.ndarray, values: int) -> np.ndarray:
    """H₂(e) + e ln(m − 1)."""
    coin = -error * np.log(error) - (1 - error) * np.log1p(-error)
    return coin + error * math.log(max(values - 1, 1))


def test_entropy_by_hand() -> None:
    assert entropy([0.5, 0.5]) == pytest.approx(math.log(2))
    assert entropy([1.0, 0.0]) == 0
    assert entropy([0.7, 0.2, 0.1]) == pytest.approx(0.8018185525433372)


@pytest.mark.parametrize("prior", [(0.5, 0.5), (0.9, 0.1), (0.2,) * 5, (0.6, 0.3, 0.1)])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_the_least_error_is_the_least(prior: tuple[float, ...], share: float) -> None:
    grid = np.linspace(1e-9, 1 - 1e-9, 400_001)
    missing = entropy(prior) * (1 - share)
    allowed = grid[uncertainty(grid, len(prior)) >= missing - 1e-12]
    assert fano_error(entropy(prior) * share, prior) == pytest.approx(allowed.min(), abs=1e-5)


def test_the_bound_grows_from_nothing_to_everything_with_the_information() -> None:
    for values in (2, 3, 6):
        assert fano_bound(0.0, np.full(values, 1 / values)) == pytest.approx(0, abs=1e-9)
    for information in (math.log(2), 5.0, math.inf):
        assert fano_bound(information, [0.5, 0.5]) == 1
    bounds = [fano_bound(nats, [0.5, 0.3, 0.2]) for nats in np.linspace(0, 1.1, 30)]
    assert (np.diff(bounds) >= 0).all()


def gram_of(gradients: np.ndarray, sigma: float) -> np.ndarray:
    centred = (gradients - gradients.mean(axis=0)) / sigma
    return centred @ centred.T


@pytest.mark.slow
@pytest.mark.parametrize("elements", [1, 5, 40])
def test_the_channel_bound_is_the_log_determinant_where_samples_abound(elements: int) -> None:
    generator = np.random.default_rng(elements)
    scales = np.linspace(0.2, 2.0, elements)
    gradients = generator.normal(size=(1600, elements)) * scales
    exact = 0.5 * np.log1p(scales**2 / 0.25).sum()
    found = Channel.of(gram_of(gradients, 0.5), elements).information()
    assert found >= exact * 0.97
    if elements <= 16:
        assert found == pytest.approx(exact, rel=0.08)


def test_the_channel_bound_holds_where_elements_abound() -> None:
    """A sample covariance of 100 samples has a log-determinant far below that of 2,000 elements."""
    generator = np.random.default_rng(0)
    gradients = generator.normal(size=(100, 2000))
    exact = 0.5 * 2000 * math.log1p(0.25)
    gram = gram_of(gradients, 2.0)
    naive = 0.5 * np.linalg.slogdet(np.eye(100) + gram / 99)[1]
    assert naive < 0.7 * exact
    assert Channel.of(gram, 2000).information() >= 0.97 * exact


@pytest.mark.parametrize("distance", [0.05, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_the_best_adversary_of_a_gaussian_channel_stays_below(
    distance: float, spread: float
) -> None:
    """Two values, means ±distance/2, batches around them with deviation ``spread``, noise 1."""
    generator = np.random.default_rng(7)
    secrets = generator.integers(0, 2, 1000)
    gradients = np.zeros((1000, 12))
    gradients[:, 0] = distance * (secrets - 0.5)
    gradients += spread * generator.normal(size=gradients.shape)
    bound = fano_bound(Channel.of(gram_of(gradients, 1.0), 12).information(), [0.5, 0.5])
    success = norm.cdf(distance / 2 / math.hypot(1, spread))
    assert bound >= 2 * success - 1


@pytest.mark.parametrize("prior", [(0.25,) * 4, (0.55, 0.15, 0.15, 0.15)])
@pytest.mark.parametrize("distance", [0.2, 0.8])
def test_the_best_adversary_of_four_values_stays_below(
    prior: tuple[float, ...], distance: float
) -> None:
    generator = np.random.default_rng(8)
    secrets = generator.choice(4, size=40_000, p=prior)
    gradients = distance * np.eye(4)[secrets]
    released = gradients + generator.normal(size=gradients.shape)
    posterior = distance * released + np.log(prior)  # Bayes' rule, up to a constant
    success = (posterior.argmax(axis=1) == secrets).mean()
    advantage = max(success - max(prior), 0) / (1 - max(prior))
    information = Channel.of(gram_of(gradients[:1000], 1.0), 4).information()
    assert fano_bound(information, prior) >= advantage


def test_rounds_of_independent_noise_add_up_above_the_joint_adversary() -> None:
    """Ten looks at one gradient through fresh noise are one look through noise of 1/√10."""
    secrets = np.random.default_rng(3).integers(0, 2, 1000)
    gradients = 0.3 * (secrets[:, None] - 0.5)
    once = Channel.of(gram_of(gradients, 1.0), 1).information()
    success = norm.cdf(0.3 / 2 * math.sqrt(10))
    assert fano_bound(10 * once, [0.5, 0.5]) >= 2 * success - 1


def test_some_samples_give_an_estimate_of_their_own() -> None:
    assert Channel.of(np.zeros((20, 20)), 7).information() == 0
    generator = np.random.default_rng(9)
    channel = Channel.of(gram_of(generator.normal(size=(400, 3)), 1.0), 3)
    everything = channel.information()
    assert channel.information(np.arange(len(channel.squares))) == pytest.approx(everything)
    halves = [channel.information(np.arange(start, 200, 2)) for start in (0, 1)]
    assert halves[0] != halves[1]
    assert np.mean(halves) == pytest.approx(everything, rel=0.1)
