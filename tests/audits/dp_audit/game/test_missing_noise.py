"""Statistics that faulty noise leaves open, through the game, beside what honest noise proves."""

import math
import os
import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_subject import Release, clip, from_file, hypotheses
from torch import Generator, Tensor

from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses, ReleaseStatistics
from gradaudit.audits.dp_audit.game.missing_noise import (
    least_noise,
    noiseless_elements,
    verdict_without_trials,
    with_further,
)
from gradaudit.audits.dp_audit.game.play import Rules, TrialsResult, play
from gradaudit.audits.dp_audit.mechanisms import Mechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.errors import AuditError

SEED, DELTA = 3, 1e-5
NOISY = ClippedNoise(clip=1, sigma=1)


def game(
    function: Release, elements: int = 80, trials: int = 400, seed: int = SEED
) -> TrialsResult:
    return play(from_file(function), hypotheses(1.0, elements=elements), Rules(trials, DELTA), seed)


def noise(generator: Generator, elements: int) -> Tensor:
    return torch.randn(elements, generator=generator)


def honest(gradients: Tensor, generator: Generator) -> Tensor:
    return clip(gradients, 1).sum(0) + noise(generator, gradients.shape[1])


def one_number(gradients: Tensor, generator: Generator) -> Tensor:
    return gradients.sum(0) + 10 * noise(generator, 1)


def line(gradients: Tensor, generator: Generator) -> Tensor:
    return gradients.sum(0) + 20 * noise(generator, 1) * torch.linspace(1, 2, gradients.shape[1])


def half_the_space(gradients: Tensor, generator: Generator) -> Tensor:
    elements = gradients.shape[1]
    mixed = torch.randn(elements // 2, elements, generator=Generator().manual_seed(1))
    return gradients.sum(0) + 5 * noise(generator, elements // 2) @ mixed


def left_out(gradients: Tensor, generator: Generator) -> Tensor:
    drawn = noise(generator, gradients.shape[1])
    return gradients.sum(0) + 3 * drawn * (torch.arange(len(drawn)) > 0)


def twice_the_same(gradients: Tensor, generator: Generator) -> Tensor:
    drawn = noise(generator, gradients.shape[1])
    drawn[1] = drawn[0]
    return gradients.sum(0) + drawn


def scaled_by_data(gradients: Tensor, generator: Generator) -> Tensor:
    return gradients.sum(0) + 5 * gradients.norm() * noise(generator, gradients.shape[1])


FAULTS = (one_number, line, half_the_space, left_out)


@pytest.mark.slow
@pytest.mark.parametrize("elements", [2, 59, 60, 300])
@pytest.mark.parametrize("function", FAULTS)
def test_noise_that_is_missing_somewhere_proves_all_that_can_be(
    function: Release, elements: int
) -> None:
    """At any number of elements, and loud or not: there is not one error."""
    result = game(function, elements)
    bound = result.scores["projection"].bound
    assert (bound.value, bound.flawless) == (bound.ceiling, True)
    assert result.reads == "projection onto the direction of least noise"


def where_it_is_not_zero(gradients: Tensor, generator: Generator) -> Tensor:
    total = gradients.sum(0)
    return total + 50 * (total != 0) * noise(generator, len(total))


def rows_of_embeddings(shared: int) -> Hypotheses:
    """Gradients of two tokens in 40 rows of 4, beside those that a batch touches anyway."""
    draw = Generator().manual_seed(1)
    null, other = torch.zeros(2, 40, 4, dtype=torch.float64)
    companions = torch.zeros(1, 40, 4, dtype=torch.float64)
    null[0], other[1] = torch.randn(2, 4, generator=draw, dtype=torch.float64)
    companions[0, 2 : 2 + shared] = torch.randn(shared, 4, generator=draw, dtype=torch.float64)
    return Hypotheses(null.flatten(), other.flatten()[None], companions.flatten(1))


@pytest.mark.parametrize("shared", [1, 30])
def test_noise_on_touched_rows_alone_proves_all_that_can_be(shared: int) -> None:
    """Epsilon is infinite; the noise is 50 times the gradient, and there is not one error."""
    played = rows_of_embeddings(shared)
    result = play(from_file(where_it_is_not_zero), played, Rules(400, DELTA), SEED)
    bound = result.scores["projection"].bound
    assert (bound.value, bound.flawless) == (bound.ceiling, True)
    assert result.reads == "number of elements at their noiseless value"


def test_elements_at_their_noiseless_value_are_counted() -> None:
    """Of four: still at two values, at one, under the null hypothesis alone, and never."""
    moving = torch.arange(3.0)
    still = torch.full((3,), 7.0)
    null = torch.stack([0 * moving, still, still, moving], dim=1)
    other = torch.stack([0 * moving + 1, still, moving, moving + 9], dim=1)
    count = noiseless_elements(null, other)
    assert count is not None
    releases = torch.tensor([[0.0, 7, 7, 5], [1, 7, 3, 5], [2, 0, 0, 0]])
    assert count(releases, np.empty(0)).tolist() == [-2, 1, 0]
    assert noiseless_elements(null[:, 1::2], other[:, 1::2]) is None


@pytest.mark.parametrize("turned", [False, True])
def test_a_scale_that_tells_the_value_is_read_off_the_distance(turned: bool) -> None:
    """Noise five times the record's norm, which is .1 or 1, would hide the projection."""
    played = hypotheses(1.0, elements=80)
    if turned:
        played = Hypotheses(played.alternatives[0], played.null[None], played.companions)
    result = play(from_file(scaled_by_data), played, Rules(400, DELTA), SEED)
    assert result.reads == "distance from the null hypothesis's mean"
    assert result.scores["projection"].bound.flawless


@pytest.mark.slow
def test_honest_noise_proves_no_more_than_its_epsilon() -> None:
    """A Gaussian mechanism's at μ = 1: 4.38 at δ = 1e-5."""
    scores = [game(honest, trials=200, seed=seed).scores["projection"] for seed in range(8)]
    assert max(score.bound.value for score in scores) < 4.38


def test_the_gaussian_bound_stays_with_the_projection() -> None:
    """Whatever takes its place: here the difference of two elements with the same noise."""
    declared, played = from_file(twice_the_same, "gaussian"), hypotheses(1.0, elements=20)
    result = play(declared, played, Rules(1000, DELTA), SEED)
    assert result.reads
    assert result.gaussian is not None
    assert result.gaussian.mu_estimate == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("elements", [3, 40])
def test_the_direction_of_least_noise_is_fishers_discriminant(elements: int) -> None:
    """Against the dense inverse, of more looks than elements and of fewer."""
    draw = Generator().manual_seed(0)
    null, other = torch.randn(2, 12, elements, generator=draw, dtype=torch.float64)
    towards = torch.randn(elements, generator=draw, dtype=torch.float64)
    projected = least_noise(null, other, ReleaseStatistics(null.mean(dim=0), towards))
    units = torch.eye(elements, dtype=torch.float64)
    found = projected(null.mean(dim=0) + units, np.empty(0))
    rows = torch.cat([null - null.mean(dim=0), other - other.mean(dim=0)])
    scale = rows.square().mean(dim=0).sqrt()
    correlations = (rows / scale).T @ (rows / scale) / len(rows)
    expected = torch.linalg.solve(correlations + 1e-12 * units, towards / scale) / scale
    np.testing.assert_allclose(found, expected / expected.norm(), atol=1e-4)
    assert np.linalg.norm(found) == pytest.approx(1)


def test_every_statistic_is_scored_and_the_one_that_is_chosen_is_kept() -> None:
    plain = ReleaseStatistics(torch.zeros(4).double(), torch.ones(4).double())
    further = {"first": lambda r, s: s[0] + 1, "sum": lambda r, s: r.sum(1).numpy()}
    statistics, releases = replace(plain, further=further), torch.arange(12.0).view(3, 4)
    scores = statistics.scores(releases)
    assert statistics.names == ("projection", "distance", "first", "sum")
    np.testing.assert_allclose(scores[:2], plain.scores(releases))
    np.testing.assert_allclose(scores[2:], [scores[0] + 1, releases.sum(dim=1)])
    assert statistics.only("sum").names == ("projection", "distance", "sum")
    assert statistics.only("").names == plain.names


def test_a_batched_form_that_repeats_its_noise_is_refused() -> None:
    def mechanism(gradients: Tensor, generator: Generator) -> Tensor:
        return honest(gradients, generator)

    mechanism.releases = lambda g, count, generator: honest(g, generator).expand(count, -1)  # type: ignore[attr-defined]
    played = hypotheses(1.0)
    statistics = ReleaseStatistics(played.null, played.alternatives[0] - played.null)
    with pytest.raises(AuditError, match="repeats one release within a batch"):
        with_further(from_file(mechanism), played, statistics, SEED)


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


@pytest.mark.parametrize("draw", [*SOURCES.values(), lambda: 1.0], ids=[*SOURCES, "constant"])
def test_a_mechanism_from_a_file_is_never_called_infinite(draw: Callable[[], float]) -> None:
    """Randomised response of ε = 9, wherever it draws, or a response that is always the same."""

    def response(gradients: Tensor, generator: Generator) -> Tensor:
        truth = gradients.sum(0).sign()
        return -truth if draw() < math.exp(-9) else truth

    assert verdict_without_trials(from_file(response), hypotheses(1.0)) is None


NULL = torch.linspace(-1, 1, 10, dtype=torch.float64)


@pytest.mark.parametrize(
    ("mechanism", "alternative", "epsilon", "words"),
    [
        (from_file(honest), NULL, 0.0, "gradient is the same with either value"),
        (NOISY, NULL, 0.0, "gradient is the same with either value"),
        (NOISY, 2 * NULL, 0.0, "the noiseless release is the same with either value"),
        (NOISY, -NULL, None, ""),
        (ClippedNoise(clip=1, sigma=0), -NULL, math.inf, "the mechanism adds no noise"),
    ],
)
def test_what_a_law_decides_needs_no_trials(
    mechanism: Mechanism, alternative: Tensor, epsilon: float | None, words: str
) -> None:
    played = Hypotheses(NULL, alternative[None], torch.zeros(0, 10))
    verdict = verdict_without_trials(mechanism, played)
    assert (None if verdict is None else verdict.epsilon) == epsilon
    assert verdict is None or words in verdict.reason
