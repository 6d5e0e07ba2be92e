import math
import os
import random
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_subject import clip, hypotheses

from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses
from gradaudit.audits.dp_audit.game.missing_noise import DegenerateVerdict, verdict_without_trials
from gradaudit.audits.dp_audit.mechanisms import DefenseMechanism, FileMechanism, Mechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise

SEED = 3
ELEMENTS = 80


def from_file(function: object) -> FileMechanism:
    return FileMechanism(function, "f.py:m")  # type: ignore[arg-type]


def honest(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return clip(gradients, 1).sum(0) + torch.randn(gradients.shape[1], generator=generator)


def constant(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.ones(ELEMENTS)


def read_device() -> float:
    with Path("/dev/urandom").open("rb", buffering=0) as device:
        return int.from_bytes(device.read(8)) / 2**64


SOURCES: dict[str, Callable[[], float]] = {
    "os.getrandom": lambda: int.from_bytes(os.getrandom(8)) / 2**64,
    "/dev/urandom": read_device,
    "a generator that C code seeds": lambda: random.Random().random(),
    "fresh generators": lambda: float(np.random.default_rng().random()),
    "secrets": lambda: secrets.randbelow(10**6) / 10**6,
}


@pytest.mark.parametrize("draw", SOURCES.values(), ids=SOURCES)
def test_a_mechanism_from_a_file_is_never_called_infinite(draw: Callable[[], float]) -> None:
    """Randomised response of ε = 9, wherever it draws."""

    def response(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        truth = gradients.sum(0).sign()
        return -truth if draw() < math.exp(-9) else truth

    played = hypotheses(1.0, elements=ELEMENTS)
    assert verdict_without_trials(from_file(response), played, SEED) is None
    assert verdict_without_trials(from_file(constant), played, SEED) is None


@pytest.mark.parametrize("mechanism", [from_file(honest), ClippedNoise(clip=1, sigma=1)])
def test_equal_gradients_give_zero(mechanism: Mechanism) -> None:
    verdict = verdict_without_trials(mechanism, hypotheses(0.0, elements=ELEMENTS), SEED)
    assert verdict is not None
    assert verdict.epsilon == 0
    assert "gradient is the same" in verdict.reason


def test_a_defense_releases_the_defended_mean() -> None:
    sizes = {"fc.weight": 60, "fc.bias": 20}
    played = hypotheses(1.0, elements=ELEMENTS, companions=3)
    batch = played.batch(played.null)
    mechanism = DefenseMechanism.parse("prune:0.9").laid_out(sizes)
    released = mechanism.release(batch, torch.Generator())
    mean = batch.mean(dim=0)
    for part, whole in zip(released.split([60, 20]), mean.split([60, 20]), strict=True):
        kept = part != 0
        assert kept.sum() == round(0.1 * len(part))
        torch.testing.assert_close(part[kept], whole[kept])
        assert whole[kept].abs().min() >= whole[~kept].abs().max()


def test_a_deterministic_defense_may_hide_a_pair() -> None:
    null = torch.linspace(-1, 1, 10, dtype=torch.float64)
    hidden = Hypotheses(null, 2 * null[None], torch.zeros(0, 10))
    shown = Hypotheses(null, -null[None], torch.zeros(0, 10))
    mechanism = DefenseMechanism.parse("sign").laid_out({"w.weight": 10})
    for played, epsilon in ((hidden, 0), (shown, math.inf)):
        verdict = verdict_without_trials(mechanism, played, SEED)
        assert verdict is not None
        assert verdict.epsilon == epsilon
        assert "deterministic" in verdict.reason


def test_no_noise_gives_infinity() -> None:
    verdict = verdict_without_trials(
        ClippedNoise(clip=1, sigma=0), hypotheses(1.0, elements=ELEMENTS), SEED
    )
    assert verdict is not None
    assert verdict.epsilon == math.inf


def test_a_known_mechanism_with_noise_plays() -> None:
    assert (
        verdict_without_trials(
            ClippedNoise(clip=1, sigma=1), hypotheses(1.0, elements=ELEMENTS), SEED
        )
        is None
    )


def test_a_clip_that_hides_the_pair_gives_zero() -> None:
    null = torch.ones(4, dtype=torch.float64)
    hidden = Hypotheses(null, 2 * null[None], torch.zeros(0, 4))
    verdict = verdict_without_trials(ClippedNoise(clip=1, sigma=1), hidden, SEED)
    assert verdict == DegenerateVerdict("the noiseless release is the same with either value", 0.0)
