"""Ordered values from thresholds, by hand and on data."""

import numpy as np
import pytest

from gradaudit.audits.attack_inference.distribution import Ordinal, from_thresholds
from gradaudit.families import family


def test_thresholds_by_hand() -> None:
    found = np.exp(from_thresholds(np.array([[0.9, 0.6, 0.1]])))
    np.testing.assert_allclose(found, 0.999 * np.array([[0.1, 0.3, 0.5, 0.1]]) + 0.001 / 4)


def test_thresholds_that_disagree_are_clipped_and_normalised() -> None:
    found = np.exp(from_thresholds(np.array([[0.5, 0.8, 0.2]])))
    shares = np.array([[0.5, 0.0, 0.6, 0.2]]) / 1.3
    np.testing.assert_allclose(found, 0.999 * shares + 0.001 / 4)
    assert np.isfinite(np.log(found)).all()


@pytest.mark.parametrize("above", [np.zeros((3, 0)), np.zeros(3)])
def test_no_threshold_is_refused(above: np.ndarray) -> None:
    with pytest.raises(ValueError, match="threshold"):
        from_thresholds(above)


@pytest.mark.parametrize("name", ["logistic", "forest"])
def test_ordered_values_are_found(name: str) -> None:
    generator = np.random.default_rng(0)
    values = generator.integers(0, 5, 800)
    features = values[:, None] + 0.3 * generator.normal(size=(800, 3))
    fitted = Ordinal(family(name)).fit(features[:600], values[:600], 5, 0)
    said = fitted.log_probabilities(features[600:])
    np.testing.assert_allclose(np.exp(said).sum(axis=1), 1)
    assert (said.argmax(axis=1) == values[600:]).mean() > 0.8
    np.testing.assert_allclose(fitted.prior, np.bincount(values[:600]) / 600)


def test_without_a_signal_the_prior_comes_out() -> None:
    """Each threshold is trained on both sides alike; the values' prior comes back in."""
    generator = np.random.default_rng(1)
    prior = np.array([0.6, 0.1, 0.3])
    values = generator.choice(3, size=4000, p=prior)
    noise = generator.normal(size=(4000, 2))
    fitted = Ordinal(family("logistic")).fit(noise, values, 3, 0, prior=prior)
    said = np.exp(fitted.log_probabilities(noise)).mean(axis=0)
    np.testing.assert_allclose(said, prior, atol=0.03)
