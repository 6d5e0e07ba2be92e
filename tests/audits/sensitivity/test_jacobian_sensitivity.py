"""Estimates of norms against the law of the probes, and their intervals' coverage."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gradaudit.audits.sensitivity.jacobian_sensitivity import (
    Array,
    DifferentiableTarget,
    Sample,
    joined,
)
from gradaudit.core.statistics.intervals import bootstrap_counts, ratio_interval
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from gradaudit.progress import Silent
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
    intervals = [sample_of(squares(spectrum, probes, generator)).interval() for _ in range(400)]
    assert covered(intervals, float(np.sqrt(spectrum.sum()))) >= 366


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


@pytest.mark.parametrize("probes", [8, 64])
@pytest.mark.parametrize("together", [True, False])
def test_the_ends_of_all_records_hold_at_once(probes: int, together: bool) -> None:
    """Of Jacobians of rank one, which have the heaviest tails, along one direction or several."""
    generator = np.random.default_rng(0)
    norms, missed = np.exp(generator.standard_normal(20)), np.zeros(2)
    for _ in range(2000):
        normal = generator.standard_normal((1 if together else 20, probes))
        low, high = sample_of(norms[:, None] ** 2 * normal**2).each_within(0.1)
        missed += (low > norms).any(), (high < norms).any()
    assert (missed <= 2000 * 0.1 + 40).all()
    assert together or (missed >= 2000 * 0.1 - 60).all()


def test_flatter_spectra_stay_within_the_ends_of_rank_one() -> None:
    generator = np.random.default_rng(0)
    for spectrum in SPECTRA.values():
        parts = squares(np.full((10_000, 1), 1.0) * spectrum, 8, generator)
        ends = [sample_of(some).each_within(0.0005 * 400) for some in np.split(parts, 25)]
        truth = float(np.sqrt(sum(spectrum)))
        below = sum((low > truth).sum() for low, _ in ends)
        above = sum((high < truth).sum() for _, high in ends)
        assert max(below, above) <= 10_000 * 0.0005 + 9, spectrum


def test_exact_norms_are_their_own_ends() -> None:
    sample = sample_of(np.array([[4.0], [9.0]]))
    assert [list(end) for end in sample.each_within(0.0)] == [[2, 3], [2, 3]]


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


def test_what_a_probe_says_alone_is_the_means_derivative_by_it() -> None:
    parts = np.array([[1.0, 4.0, 9.0], [16.0, 16.0, 25.0]])
    for squared in (True, False):
        sample = sample_of(parts, squared=squared)
        assert sample.by_probe.mean() == pytest.approx(sample.mean)
        for probe in range(3):
            weights = np.array([1.0, 1.0, 1.0])
            weights[probe] += 1e-6
            moved = sample_of((parts @ (weights / weights.sum()))[:, None], squared=squared)
            slope = (moved.mean - sample.mean) / 1e-6 * 3
            assert slope == pytest.approx(sample.by_probe[probe] - sample.mean, abs=1e-4)


def test_errors_of_two_sources_add_in_squares_of_logarithms() -> None:
    low, high = joined(1.0, (np.exp(-3), np.exp(6)), (np.exp(-4), np.exp(8)))
    np.testing.assert_allclose([low, high], np.exp([-5.0, 10.0]))
    assert joined(2.0, (1.0, 3.0), (2.0, 2.0)) == pytest.approx((1.0, 3.0))
    assert joined(2.0, (1.0, 3.0), (0.0, 2.5))[0] == 0
    assert joined(0.0, (0.0, 0.0), (0.0, 0.0)) == (0.0, 0.0)


def test_intervals_over_records_and_probes_cover() -> None:
    """Gamma norms of rank one, seen by 16 probes that all records share."""
    generator = np.random.default_rng(0)
    intervals = []
    for seed in range(150):
        norms = generator.gamma(4.0, size=(24, 1))
        sample = sample_of((norms * generator.standard_normal(16)) ** 2)
        over_records = ratio_interval(sample.values, np.ones(24), bootstrap_counts(24, seed))
        assert over_records is not None
        intervals.append(joined(sample.mean, over_records, sample.interval()))
    assert_covers(intervals, 4.0, 0.93)


@pytest.mark.slow
def test_each_layers_interval_covers_the_exact_norm_of_a_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 5)),
    )
    records = Records(inputs=torch.rand(4, 1, 10, 10), labels=torch.tensor([0, 1, 2, 3]))
    target = Target(model, CrossEntropy())
    observed = DifferentiableTarget.of(target, layers_of(model), records, seed=0)

    def measured(probes: int, seed: int) -> dict[str, Sample]:
        found = observed.jacobian_sensitivity(
            "point", probes, seed=seed, memory=1 << 28, progress=Silent()
        ).raw
        return {layer: norms["f"] for layer, norms in found.items()}

    exact = measured(0, 0)
    many = [measured(80, seed) for seed in range(10)]  # probes are drawn one by one
    for layer, truth in exact.items():
        assert truth.exact
        estimates = [
            replace(found[layer], parts=found[layer].parts[:, some : some + 16])
            for found in many
            for some in range(0, 80, 16)
        ]
        assert covered([estimate.interval() for estimate in estimates], truth.mean) >= 44, layer
        means = np.array([estimate.mean**2 for estimate in estimates])
        error = means.std(ddof=1) / np.sqrt(len(means))
        assert abs(means.mean() - truth.mean**2) < 4 * error + 0.02 * truth.mean**2
