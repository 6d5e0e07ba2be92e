"""Mods that draw noise from a generator of their own, which no global seed repeats."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from job_folders import NET, flower_app

from gradaudit.audits.dp_audit.middleware.distance import Distance
from gradaudit.audits.dp_audit.middleware.payload import Arrays, Layout, Outgoing
from gradaudit.audits.job import Job, JobOptions
from gradaudit.audits.job.epsilon import _multiplier
from gradaudit.audits.job.findings import faults_of
from gradaudit.audits.job.loading.chains import Carry, JobChain
from gradaudit.audits.job.measure import audited
from gradaudit.audits.job.probing import Probe, probe
from gradaudit.audits.rows import Rows
from gradaudit.core.text import number
from gradaudit.view.layers import _array_line

Noise = Callable[[float, tuple[int, ...]], np.ndarray]


def unseeded() -> np.random.Generator:
    """A generator that ``reproducible`` cannot hold, unlike one of ``default_rng()``."""
    return np.random.default_rng(int.from_bytes(os.urandom(16)))


def with_numpy(sigma: float, shape: tuple[int, ...]) -> np.ndarray:
    """Gaussian noise from a new generator of the system's entropy."""
    return unseeded().normal(0, sigma, shape)


def with_laplace(sigma: float, shape: tuple[int, ...]) -> np.ndarray:
    """Laplace noise from a new generator of the system's entropy."""
    return unseeded().laplace(0, sigma / np.sqrt(2), shape)


def with_torch(sigma: float, shape: tuple[int, ...]) -> np.ndarray:
    """Gaussian noise from torch, seeded by the system's entropy."""
    generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(8)))
    return sigma * torch.randn(shape, generator=generator).numpy()


def with_global(sigma: float, shape: tuple[int, ...]) -> np.ndarray:
    """Gaussian noise from NumPy's global generator, which ``reproducible`` holds."""
    return np.random.normal(0, sigma, shape)  # noqa: NPY002


def mod(fault: str, clip: float, sigma: float, noise: Noise) -> Carry:
    """A clip and noise on differences of weights, or one of its faults."""

    def norm(arrays: list[np.ndarray]) -> float:
        return float(np.sqrt(sum(np.square(a, dtype=float).sum() for a in arrays))) + 1e-12

    def carry(received: Arrays, given: Outgoing) -> Outgoing:
        before = [np.zeros_like(a) if fault == "weights" else a for a in received.values()]
        update = [a - b for a, b in zip(given.arrays.values(), before, strict=True)]
        factor = 1.0 if fault == "no-clip" else min(1.0, clip / norm(update))
        factor = 0.5 if fault == "own-clip" else factor
        factors = [min(1.0, clip / norm([a])) if fault == "parts" else factor for a in update]
        sent = {
            key: (b + d * f + noise(sigma, d.shape)).astype(np.float32)
            for key, b, d, f in zip(received, before, update, factors, strict=True)
        }
        return Outgoing(sent, "weights", {})

    return carry


def probed(
    fault: str = "",
    *,
    size: int = 2000,
    clip: float = 1.0,
    sigma: float = 0.5,
    noise: Noise = with_numpy,
    seed: int = 0,
    deviation: float = 0.1,
) -> tuple[set[str], Probe]:
    """The faults of such a mod on a model of four arrays, and its probe."""
    rng = np.random.default_rng(seed)
    sizes = (size - size // 2 - 2 * (size // 8), size // 2, size // 8, size // 8)
    received = {
        f"layer{i}": rng.normal(0, deviation, n).astype(np.float32) for i, n in enumerate(sizes)
    }
    chain = JobChain("train", [], "weights", mod(fault, clip, sigma, noise))
    chain = chain.receiving(Layout(received))
    done = probe(chain, seed)
    found = faults_of(chain, done, private=False, fixed_seed=False, delta=1e-5)
    return {fault.name for fault in found}, done


OWN = """
import numpy as np
from tiny.mods import DpMod
class Own(DpMod):
    def __init__(self, make):
        super().__init__(clip=1.0, noise_multiplier=10.0)
        self.make = make
    def noise(self, key, shape):
        drawn = [self.make().normal() for _ in range(int(np.prod(shape)))]
        return 10 * np.reshape(drawn, shape)
def of_numpy():
    return np.random.Generator(np.random.PCG64())
def once(made):
    return lambda: made
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "steady"),
    [("of_numpy", True), ("np.random.default_rng", True), ("once(of_numpy())", False)],
)
def test_the_same_command_gives_the_same_epsilon_of_own_generators(
    tmp_path: Path, made: str, steady: bool
) -> None:
    pytest.importorskip("flwr")
    folder = flower_app(tmp_path, f"Own({made})", client=OWN)
    (folder / "tiny" / "net.py").write_text(NET, encoding="utf-8")
    options = JobOptions(noise="gaussian", replies=("num-examples=1", "train_loss=none"), rounds=2)
    first, again = (audited(folder, options) for _ in range(2))
    assert first.strength[""].multiplier == again.strength[""].multiplier
    assert first.strength[""].multiplier < 10
    assert first.faults == again.faults
    assert [fault.says for fault in first.faults] == []
    assert first.probes[0].steady == steady


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_correct_mod_has_no_fault(seed: int) -> None:
    """Noise of .01 to 10 on 50 to 50,000 numbers, clips of .1 to 10, three generators."""
    rng = np.random.default_rng((17, seed))
    size, sigma, clip = (float(10 ** rng.uniform(*ends)) for ends in ((1.7, 4.7), (-2, 1), (-1, 1)))
    noise = (with_numpy, with_laplace, with_torch)[seed % 3]
    found, done = probed(size=int(size), clip=clip, sigma=sigma, noise=noise, seed=seed)
    assert not done.steady
    assert found == set()


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.01, 0.5, 10.0])
@pytest.mark.parametrize(
    ("fault", "name"), [("weights", "noise-on-weights"), ("no-clip", "no-clip")]
)
@pytest.mark.parametrize("size", [50, 20_000])
def test_a_fault_behind_noise_is_found(fault: str, name: str, sigma: float, size: int) -> None:
    assert name in probed(fault, sigma=sigma, size=size)[0]


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.0, 0.1, 10.0])
@pytest.mark.parametrize("sigma", [0.01, 10.0, 1000.0])
@pytest.mark.parametrize("size", [50, 20_000])
def test_a_clip_of_weights_is_found_behind_noise_that_a_seed_repeats(
    deviation: float, sigma: float, size: int
) -> None:
    """Also where the weights received are zero, or far smaller than the noise."""
    given: dict[str, Any] = {"sigma": sigma, "size": size, "noise": with_global}
    found, done = probed("weights", **given, deviation=deviation)
    assert done.steady
    assert "noise-on-weights" in found
    assert probed(**given, deviation=deviation)[0] == set()


@pytest.mark.slow
@pytest.mark.parametrize("noise", [with_global, with_numpy])
def test_a_clip_of_zero_weights_is_found(noise: Noise) -> None:
    assert "noise-on-weights" in probed("weights", sigma=10.0, deviation=0.0, noise=noise)[0]


@pytest.mark.slow
def test_faults_of_the_clip_are_named_behind_little_noise() -> None:
    assert "clip-per-array" in probed("parts", sigma=0.01, size=200)[0]
    assert "clip-from-own-data" in probed("own-clip", sigma=0.1, size=200)[0]


def test_the_sensitivity_is_twice_the_clip_within_its_error() -> None:
    """Not the length of the mean noise, which is 5.6 here; six standard errors, unseeded."""
    done = probed(sigma=0.5)[1]
    assert abs(done.largest.squared - 4) < 6 * done.largest.error < 3
    assert done.clipped


@pytest.mark.slow
def test_the_multiplier_is_bounded_from_below_as_often_as_it_says() -> None:
    """95 % of 40 probes, less five deviations; true is the noise of .5 over a clip of 1."""
    found = [_multiplier(probed(size=1000, seed=seed)[1]) for seed in range(40)]
    assert sum(value <= 0.5 for value in found) >= 31
    assert np.median(found) == pytest.approx(0.47, abs=0.03)


def test_an_estimated_norm_is_shown_by_its_upper_end() -> None:
    details = {"norm_before": 3.0, "norm_after": 0.5, "norm_after_interval": [0.0, 0.75]}
    row = Rows(Job).of({"key": "fc.bias"}, details).measured("untouched", 0.0, layer="fc")
    line = _array_line(row)
    assert (line.before, line.after) == (number(3.0), f"≤ {number(0.75)}")


def test_the_square_of_a_distance_has_no_bias_and_its_error_is_its_spread() -> None:
    """Of 400 estimates each, around a mean of norm 0 or 3, behind noise of norm 20 and 2."""
    for scale in (2.0, 0.2):
        for norm in (0.0, 3.0):
            generator = torch.Generator().manual_seed(0)
            mean = torch.zeros(100)
            mean[:9] = norm / 3
            found = [
                Distance.from_draws(mean + scale * torch.randn(8, 100, generator=generator))
                for _ in range(400)
            ]
            squares = np.array([each.squared for each in found])
            errors = np.array([each.error for each in found])
            assert abs(squares.mean() - norm**2) < 4 * squares.std() / 20
            assert errors.mean() == pytest.approx(squares.std(), rel=0.15)


def test_a_distance_without_noise_is_exact() -> None:
    assert Distance.from_draws(torch.tensor([[3.0, 4.0]])) == Distance(25.0, 0.0)
    assert Distance.from_draws(torch.tensor([[3.0, 4.0]] * 5)) == Distance(25.0, 0.0)
