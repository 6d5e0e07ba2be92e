"""Norms of gradients, and the forest that is shown nothing else."""

import numpy as np
import pytest

from gradaudit.audits.vinfo.v_information import macro_auroc
from gradaudit.families import family
from gradaudit.families.base import Training
from gradaudit.families.forest import BLOCKS, norms


def drawn(rows: int, columns: int, larger: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian rows without a mean; those of class 1 are larger by a factor."""
    labels = np.arange(rows) % 2
    features = np.random.default_rng(seed).normal(size=(rows, columns))
    return features * np.where(labels, larger, 1.0)[:, None], labels


def test_they_are_those_of_a_dense_computation() -> None:
    gradients = drawn(6, 100, 2.0, 0)[0].astype(np.float32)
    gradients[:, 7:19] = 0
    wide = gradients.astype(np.float64)
    length = np.linalg.norm(wide, axis=1)
    starts = [100 * block // BLOCKS for block in range(BLOCKS)]
    blocks = [np.linalg.norm(part, axis=1) for part in np.split(wide, starts[1:], axis=1)]
    with np.errstate(divide="ignore"):
        expected = np.log(
            [length, *(np.linalg.norm(wide, p, axis=1) / length for p in (1, 4, np.inf))]
        )
        of_blocks = np.log(np.array(blocks) / length)
    found = norms(gradients)
    np.testing.assert_allclose(found[:, :4], expected.T, rtol=1e-5, atol=1e-6)
    told = np.isfinite(of_blocks.T)
    np.testing.assert_allclose(found[:, 4:-1][told], of_blocks.T[told], rtol=1e-4, atol=1e-6)
    assert (found[:, 4:-1][~told] < -40).all()
    np.testing.assert_allclose(found[:, -1], 0.12)


def test_only_the_first_changes_with_the_length() -> None:
    gradients = drawn(5, 40, 1.0, 1)[0]
    plain, longer = norms(gradients), norms(gradients * 1e-9)
    np.testing.assert_allclose(longer[:, 0] - plain[:, 0], np.log(1e-9), rtol=1e-12)
    np.testing.assert_allclose(longer[:, 1:], plain[:, 1:], atol=1e-12)


def test_a_gradient_of_zeros_and_short_ones_are_finite() -> None:
    assert np.isfinite(norms(np.zeros((2, 50), np.float32))).all()
    assert norms(np.ones((2, 3))).shape == (2, 3 + 5)


@pytest.mark.parametrize("columns", [30, 1000])
def test_a_scale_is_read_that_a_linear_reader_cannot_see(columns: int) -> None:
    features, labels = drawn(80, columns, 1.6, 0)
    unseen, truth = drawn(200, columns, 1.6, 1)
    areas = {}
    for name in ("norms", "logistic"):
        reads = family(name).reads
        member = family(name).fit(reads(features), labels, 2, 0)
        areas[name] = macro_auroc(member.log_probabilities(reads(unseen)), truth)
    assert areas["norms"] > 0.95
    assert areas["logistic"] < 0.65


def test_ordered_values_are_read_from_norms_too() -> None:
    labels = np.arange(120) % 3
    gradients = np.random.default_rng(0).normal(size=(120, 60)) * 2.0 ** labels[:, None]
    features = family("norms").reads(gradients)
    training = Training.of(features, labels, 3, np.full(3, 1 / 3))
    above = family("norms").fit_ordered(training, np.random.default_rng(1))(features)
    assert above.shape == (120, 2)
    assert (above[labels == 0].max(axis=0) < above[labels == 2].min(axis=0)).all()
