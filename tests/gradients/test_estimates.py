"""Estimates of norms against the law of the probes, and their intervals' coverage."""

import numpy as np
import pytest
import torch
from torch import nn

from gradaudit.gradients.estimates import CONFIDENCE, REPLICATES, Array, Sample, drawn, percentiles
from gradaudit.gradients.sensitivity import Observed
from gradaudit.loading.losses import CrossEntropy
from gradaudit.loading.records import Records
from gradaudit.progress import Silent
from gradaudit.target import Target, layers_of
from tests.coverage import assert_covers, covered

SPECTRA = {
    "rank one": [1.0],
    "nearly rank one": [1.0, *[0.02] * 10],
    "rank two": [1.0, 1.0],
    "halving": list(0.5 ** np.arange(20)),
    "flat": [1.0] * 50,
}


def squares(spectra: Array, probes: int, generator: np.random.Generator) -> Array:
    """‖J_k v_p‖² of Jacobians with these squared singular values and unrelated directions."""
    records, rank = spectra.shape
    normal = generator.standard_normal((probes, records, rank))
    return np.einsum("pkr,kr->kp", normal**2, spectra)


def sample_of(parts: Array, *, squared: bool = True, columns: int | None = None) -> Sample:
    return Sample(parts, np.ones(len(parts), dtype=bool), squared, columns)


@pytest.mark.slow
@pytest.mark.parametrize("probes", [8, 16, 64])
@pytest.mark.parametrize("name", SPECTRA)
def test_intervals_of_the_f_norm_cover(name: str, probes: int) -> None:
    generator = np.random.default_rng(0)
    spectrum = np.array([SPECTRA[name]])
    intervals = [sample_of(squares(spectrum, probes, generator)).interval() for _ in range(1000)]
    assert covered(intervals, float(np.sqrt(spectrum.sum()))) >= 915


def test_intervals_cover_when_records_share_their_probes() -> None:
    generator = np.random.default_rng(0)
    scales = np.array([0.01, 1.0, 3.0, 20.0])
    truth = float(scales.mean())
    intervals = []
    for _ in range(1000):
        normal = generator.standard_normal(16)
        intervals.append(sample_of(np.outer(scales**2, normal**2)).interval())
    assert_covers(intervals, truth, 0.93)


@pytest.mark.parametrize("drawn_columns", [10, 40, 79])
def test_intervals_of_sums_over_columns_cover(drawn_columns: int) -> None:
    generator = np.random.default_rng(0)
    columns = generator.gamma(2.0, size=(3, 80))
    truth = float(columns.sum(axis=1).mean())
    intervals = []
    for _ in range(500):
        some = generator.choice(80, drawn_columns, replace=False)
        intervals.append(sample_of(80 * columns[:, some], squared=False, columns=80).interval())
    assert_covers(intervals, truth, 0.93)


def test_an_estimate_is_unbiased_in_its_square() -> None:
    generator = np.random.default_rng(0)
    spectrum = np.array([SPECTRA["halving"]])
    parts = squares(spectrum, 200_000, generator)
    error = np.sqrt(2 * (spectrum**2).sum() / parts.shape[1])
    assert sample_of(parts).mean ** 2 == pytest.approx(spectrum.sum(), abs=4 * error)


def test_nothing_moves() -> None:
    still = sample_of(np.zeros((3, 8)))
    assert still.mean == 0
    assert still.interval() == (0, 0)


def test_replicates_draw_records_and_probes_again() -> None:
    parts = np.array([[1.0, 4.0, 9.0], [16.0, 16.0, 25.0], [0.0, 0.0, 0.0]])
    sample = Sample(parts[:2], np.array([True, True, False]), squared=True)
    records = np.array([[1.0, 0, 2], [1, 2, 0], [0, 0, 3]])
    probes = np.array([[1.0, 0, 0], [0, 0.5, 0.5], [0, 0, 1]])
    expected = [1.0, (np.sqrt(6.5) + 2 * np.sqrt(20.5)) / 3, np.nan]
    np.testing.assert_allclose(sample.replicates(records, probes), expected)


def test_draws_are_with_replacement_and_by_seed() -> None:
    draws = drawn(7, seed=3, key=0)
    assert draws.shape == (REPLICATES, 7)
    assert (draws.sum(axis=1) == 7).all()
    assert draws.max() > 1
    assert np.array_equal(draws, drawn(7, seed=3, key=0))
    assert not np.array_equal(draws, drawn(7, seed=4, key=0))


def test_the_bootstrap_covers_the_mean_of_many_records() -> None:
    generator = np.random.default_rng(0)
    intervals = []
    for seed in range(200):
        sample = sample_of(generator.gamma(4.0, size=(40, 1)), squared=False)
        intervals.append(percentiles(sample.replicates(drawn(40, seed, 0), drawn(1, seed, 1))))
    assert_covers(intervals, 4.0, 0.92)


@pytest.mark.slow
def test_each_layers_interval_covers_the_exact_norm_in_90_of_100_seeds() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 5)),
    )
    records = Records(inputs=torch.rand(4, 1, 10, 10), labels=torch.tensor([0, 1, 2, 3]))
    target = Target(model, CrossEntropy())
    observed = Observed.of(target, layers_of(model), records, seed=0)

    def measured(probes: int, seed: int) -> dict[str, Sample]:
        found = observed.measure(
            "point", probes, seed=seed, memory=1 << 28, progress=Silent()
        ).samples
        return {layer: norms["f"] for layer, norms in found.items()}

    exact = measured(0, 0)
    estimates = [measured(16, seed) for seed in range(100)]
    for layer, truth in exact.items():
        assert truth.exact
        intervals = [estimate[layer].interval() for estimate in estimates]
        assert covered(intervals, truth.mean) >= 90, layer
        means = np.array([estimate[layer].mean ** 2 for estimate in estimates])
        error = means.std(ddof=1) / np.sqrt(len(means))
        assert abs(means.mean() - truth.mean**2) < 4 * error + 0.02 * truth.mean**2
    assert CONFIDENCE == 0.95
