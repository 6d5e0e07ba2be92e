"""Calibration: the best factor, nothing out of nothing, and no certainty out of few rows."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from gradaudit.families import family, log_loss
from gradaudit.families.base import normalised
from gradaudit.families.calibration import Calibration, best_sharpness, calibration

UNIFORM = np.array([0.5, 0.5])


def data(rows: int, shift: float, seed: int, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 2
    features = rng.normal(size=(rows, columns))
    features[:, 0] += shift * labels
    return features, labels


def test_the_sharpness_minimises_the_weighted_log_loss() -> None:
    rng = np.random.default_rng(0)
    evidence, labels = rng.normal(size=(200, 3)), rng.integers(0, 3, 200)
    evidence[np.arange(200), labels] += 0.4
    prior, weights = np.log(np.array([0.2, 0.5, 0.3])), rng.uniform(0.5, 1.5, 200)

    def loss(sharpness: float) -> float:
        found = normalised(sharpness * evidence + prior)
        return float(-(weights * found[np.arange(200), labels]).sum())

    expected = minimize_scalar(loss, bounds=(0, 20), method="bounded", options={"xatol": 1e-9})
    np.testing.assert_allclose(
        best_sharpness(evidence, prior, labels, weights), expected.x, rtol=1e-4
    )


def test_evidence_that_misleads_is_ignored() -> None:
    evidence = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert best_sharpness(evidence, np.log(UNIFORM), np.array([1, 0])) == 0


def told(
    name: str, fitted_on: tuple[np.ndarray, np.ndarray], rows: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """What a member says of rows, and their labels."""
    member = family(name).fit(*fitted_on, 2, 0, prior=UNIFORM)
    return member.log_probabilities(rows[0]), rows[1]


def test_where_nothing_was_found_the_prior_is_left() -> None:
    features, labels = data(300, 0.0, 0)
    prior = np.array([0.3, 0.7])
    fitted = family("forest").fit(features, labels, 2, 0, prior=prior)
    others, their_labels = data(300, 0.0, 1)
    found = calibration(fitted.log_probabilities(others), their_labels, prior, independent=20)
    assert found.sharpness == 0
    said = found(fitted.log_probabilities(features))
    np.testing.assert_allclose(said, np.tile(np.log(prior), (300, 1)))


@pytest.mark.slow
def test_nothing_is_rarely_found_in_nothing() -> None:
    gains = []
    for seed in range(60):
        fitted = family("logistic").fit(*data(40, 0.0, 3 * seed), 2, 0)
        others, their_labels = data(40, 0.0, 3 * seed + 1)
        believe = calibration(fitted.log_probabilities(others), their_labels, fitted.prior)
        features, labels = data(2000, 0.0, 3 * seed + 2)
        gains.append(np.log(2) - log_loss(believe(fitted.log_probabilities(features)), labels))
    assert -0.015 < np.mean(gains) < 1e-12
    assert np.mean(np.abs(gains) < 1e-3) > 0.6


def test_what_ranks_is_believed_though_it_is_far_too_sure() -> None:
    """Of three independent batches' worth, evidence that is right nine times in ten, by 20 nats."""
    labels = np.arange(60) % 2
    right = np.arange(60) % 10 > 0
    evidence = np.where(right == (labels == 1), 20.0, -20.0)
    raw = normalised(np.stack([0 * evidence, evidence], axis=1))
    assert log_loss(raw, labels) > np.log(2)
    found = calibration(raw, labels, UNIFORM, independent=3)
    assert 0.15 < np.log(2) - log_loss(found(raw), labels) < 0.37


@pytest.mark.parametrize("name", ["forest", "logistic", "mlp"])
def test_a_calibrated_member_is_as_sure_as_it_is_right(name: str) -> None:
    believe = calibration(*told(name, data(300, 1.5, 0), data(2000, 1.5, 1)), UNIFORM)
    raw, labels = told(name, data(300, 1.5, 0), data(6000, 1.5, 2))
    said = np.exp(believe(raw)[:, 1])
    bins = np.digitize(said, [0.2, 0.4, 0.6, 0.8])
    for part in range(5):
        own = bins == part
        assert abs(said[own].mean() - labels[own].mean()) < 0.12
    assert log_loss(believe(raw), labels) < log_loss(raw, labels) + 0.002


def test_few_rows_without_an_error_leave_a_doubt() -> None:
    fitted_on = data(100, 50.0, 0)
    seen = told("logistic", fitted_on, data(100, 50.0, 1))
    believe = calibration(*seen, UNIFORM, independent=9)
    assert believe.doubt == pytest.approx(1 / 20)
    surest = np.exp(believe(told("logistic", fitted_on, data(100, 50.0, 2))[0])).max()
    np.testing.assert_allclose(surest, 1 - believe.doubt / 2, atol=1e-3)


def test_doubt_mixes_the_prior_in() -> None:
    said, _ = told("logistic", data(100, 2.0, 0), data(100, 2.0, 1))
    plain = np.exp(Calibration(UNIFORM, 1.0)(said))
    np.testing.assert_allclose(plain, np.exp(said))
    doubting = np.exp(Calibration(UNIFORM, 1.0, 0.1)(said))
    np.testing.assert_allclose(doubting, 0.9 * plain + 0.1 * UNIFORM)
