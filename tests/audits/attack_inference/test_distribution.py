"""Ordered values from thresholds, by hand and on data."""

from dataclasses import replace

import numpy as np
import pytest
from audits.attack_inference.people import people

from gradaudit.audits.attack_inference.distribution import DistributionGame, from_thresholds
from gradaudit.audits.attack_inference.split import Design
from gradaudit.games.splits import Batches

ROOT = np.random.SeedSequence(0)


@pytest.mark.parametrize(
    ("above", "shares"),
    [
        ([0.9, 0.6, 0.1], [0.1, 0.3, 0.5, 0.1]),
        ([0.5, 0.8, 0.2], np.array([0.5, 0.0, 0.6, 0.2]) / 1.3),  # thresholds that disagree
    ],
)
def test_thresholds_by_hand(above: list[float], shares: list[float]) -> None:
    found = from_thresholds(np.array([above]))
    np.testing.assert_allclose(np.exp(found), 0.999 * np.array([shares]) + 0.001 / 4)


@pytest.mark.parametrize("above", [np.zeros((3, 0)), np.zeros(3)])
def test_no_threshold_is_refused(above: np.ndarray) -> None:
    with pytest.raises(ValueError, match="threshold"):
        from_thresholds(above)


@pytest.mark.parametrize("name", ["logistic", "forest"])
def test_ordered_values_are_found(name: str) -> None:
    generator = np.random.default_rng(0)
    values = generator.integers(0, 5, 800)
    features = values[:, None] + 0.3 * generator.normal(size=(800, 3))
    split = DistributionGame("sex").split(people(), Design(20, bins=5, batches=600), ROOT)
    split = replace(split, shadow=Batches(split.shadow.indices, values[:600]))
    own, released = features[:600], features[600:]
    said = DistributionGame("sex").answers(split, name, own, released, 0).observed
    np.testing.assert_allclose(np.exp(said).sum(axis=1), 1)
    assert (said.argmax(axis=1) == values[600:]).mean() > 0.8
