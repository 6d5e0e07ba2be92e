"""Statistics that faulty noise leaves open, through the game, beside what honest noise proves."""

import math
import os
import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_subject import Release, clip, from_file, hypotheses
from torch import Generator, Tensor

from gradaudit.audits.dp_audit import mechanisms
from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses, ReleaseStatistics
from gradaudit.audits.dp_audit.game.missing_noise import (
    cosine,
    lattice_statistic,
    lattice_steps,
    least_noise,
    lone_repeats,
    noiseless_elements,
    verdict_without_trials,
    with_further,
)
from gradaudit.audits.dp_audit.game.play import Rules, TrialsResult, play
from gradaudit.audits.dp_audit.mechanisms import DefenseMechanism, Mechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.defenses.base import Defense, DefenseOptions
from gradaudit.errors import AuditError, UsageError

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


def lattice(gradients: Tensor, generator: Generator) -> Tensor:
    return gradients.sum(0) + (100 * noise(generator, gradients.shape[1])).round() / 100


def scaled_by_data(gradients: Tensor, generator: Generator) -> Tensor:
    return gradients.sum(0) + 5 * gradients.norm() * noise(generator, gradients.shape[1])


def left_out_at_times(share: float) -> Release:
    def skipped(gradients: Tensor, generator: Generator) -> Tensor:
        some = torch.rand((), generator=generator) > share
        return gradients.sum(0) + some * 3 * noise(generator, gradients.shape[1])

    return skipped


FAULTS = {
    **dict.fromkeys(
        (one_number, line, half_the_space, left_out),
        "projection onto the direction of least noise",
    ),
    lattice: "phase on the lattice of the noise",
}


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
    assert result.reads == FAULTS[function]


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
def test_honest_noise_proves_no_more_than_its_epsilon_and_repeats_nothing() -> None:
    """A Gaussian mechanism's at μ = 1: 4.38 at δ = 1e-5."""
    scores = [game(honest, trials=200, seed=seed).scores["projection"] for seed in range(8)]
    assert max(score.bound.value for score in scores) < 4.38
    assert not any(lone_repeats(score.null, score.alternative) for score in scores)


@pytest.mark.slow
def test_noise_that_is_left_out_at_times_shows_where_there_are_enough_releases() -> None:
    """Once in ten, in 2 × 10,000 releases: about 2,000 give the value away."""
    result = game(left_out_at_times(0.1), trials=10_000)
    assert result.reads == "cosine with the mean difference"
    assert result.scores["projection"].bound.value > 5


@pytest.mark.parametrize(
    ("null", "other", "expected"),
    [
        ([5.0] * 3, [7.0] * 4, 7),
        ([5.0] * 3, [5.0], 0),
        ([5.0] * 2, [7.0] * 2, 0),
        ([5.0] * 70, [7.0], 0),
    ],
    ids=["told apart", "under both", "too few", "most of them"],
)
def test_repeats_under_one_hypothesis_are_counted(
    null: list[float], other: list[float], expected: int
) -> None:
    drawn = np.random.default_rng(0).normal(size=(2, 30))
    found = lone_repeats(np.concatenate([drawn[0], null]), np.concatenate([drawn[1], other]))
    assert found == expected


def test_noise_that_is_left_out_seldom_is_told_by_its_repeats() -> None:
    """Once in twenty releases, which the bound from so few trials says little of."""
    found = game(left_out_at_times(0.05)).scores["projection"]
    assert 20 < lone_repeats(found.null, found.alternative) < 70


def test_the_gaussian_bound_stays_with_the_projection() -> None:
    """Whatever takes its place: the phase of a lattice follows no normal law."""
    declared, played = from_file(lattice, "gaussian"), hypotheses(1.0, elements=20)
    result = play(declared, played, Rules(1000, DELTA), SEED)
    assert result.reads
    assert result.gaussian is not None
    assert result.gaussian.mu_estimate == pytest.approx(1, abs=0.2)


def test_the_cosine_is_that_of_dense_vectors() -> None:
    draw = Generator().manual_seed(0)
    centre, towards = torch.randn(2, 9, generator=draw, dtype=torch.float64)
    releases = torch.randn(50, 9, generator=draw, dtype=torch.float64)
    releases[0], releases[1] = centre, centre + towards
    middle = releases - centre - towards / 2
    expected = torch.cosine_similarity(middle, towards.expand_as(middle), dim=1)
    found = cosine(ReleaseStatistics(centre, towards).scores(releases), float(towards.norm()))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert found[:2].tolist() == pytest.approx([-1, 1])
    assert cosine(np.array([[0.5], [0.5]]), 1.0).tolist() == [0.0], "in the middle itself"


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


COUNT, ELEMENTS = 128, 6


def on_lattice(step: float, shift: float, seed: int, rounded: bool = False) -> Tensor:
    """Normal noise in whole steps around a shift, (COUNT, ELEMENTS) float32."""
    drawn = torch.randn(COUNT, ELEMENTS, generator=Generator().manual_seed(seed)).double()
    shifts = shift * torch.arange(1, ELEMENTS + 1)
    if rounded:
        return (((drawn + shifts) / step).round() * step).float()
    return ((drawn / step).round() * step + shifts).float()


@pytest.mark.parametrize("step", [0.5, 0.1, 0.01, 1e-3])
def test_the_step_of_a_lattice_is_found_to_rounding(step: float) -> None:
    values = on_lattice(step, 0.0123, 1).double().numpy()
    rounding = 16 * np.finfo(np.float32).eps * np.abs(values).max(axis=0)
    np.testing.assert_allclose(lattice_steps(values, rounding), step, rtol=1e-5)


def test_the_step_is_the_greatest_common_divisor_of_the_differences() -> None:
    """Against the divisor of whole numbers, where no two values are neighbours."""
    numbers = np.array([[0, 12, 42, 78], [0, 10, 35, 50]]).T
    expected = [math.gcd(*np.diff(column).tolist()) for column in numbers.T]
    found = lattice_steps(numbers * float(Fraction(1, 8)) + 0.3, np.full(2, 1e-9))
    np.testing.assert_allclose(found, np.array(expected) / 8)


@pytest.mark.parametrize("seed", range(20))
def test_continuous_noise_has_no_lattice(seed: int) -> None:
    null, other = torch.randn(2, COUNT, ELEMENTS, generator=Generator().manual_seed(seed))
    assert lattice_statistic(null, other + 1, torch.ones(ELEMENTS)) is None


@pytest.mark.parametrize(
    ("step", "shift", "rounded"), [(0.1, 0.0133, False), (1e-3, 0.0133, False), (0.1, 0.03, True)]
)
def test_remainders_tell_the_hypotheses_of_fresh_releases_apart(
    step: float, shift: float, rounded: bool
) -> None:
    """Σ 1 − cos(2π Δ_j/h) of the alternative, less than nothing of the null, none if rounded."""
    looks = (on_lattice(step, by, seed, rounded) for by, seed in ((0.0, 1), (shift, 2)))
    statistic = lattice_statistic(*looks, torch.ones(ELEMENTS))
    assert statistic is not None
    turns = 2 * math.pi * shift * np.arange(1, ELEMENTS + 1) / step
    expected = 0 if rounded else (1 - np.cos(turns)).sum()
    for sign, by, seed in ((-1, 0.0, 3), (1, shift, 4)):
        released = statistic(on_lattice(step, by, seed, rounded))
        np.testing.assert_allclose(released, sign * expected, rtol=0.05, atol=1e-3)


def test_still_elements_have_no_lattice() -> None:
    still = torch.ones(COUNT, 1)
    assert lattice_statistic(still, still + 1, torch.ones(1)) is None


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

    assert verdict_without_trials(from_file(response), hypotheses(1.0), SEED) is None


class Noisy(Defense[DefenseOptions]):
    """Add noise to every element."""

    name, summary, example = "noisy", "Add noise.", "noisy"

    def apply(self, gradients: Tensor, *, records: int, generator: Generator) -> Tensor:
        return gradients + torch.randn(gradients.shape, generator=generator)


class Claimed(Noisy):
    """The same, declared to draw no random numbers."""

    deterministic = True


def test_a_defense_is_random_unless_it_declares_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "parse_defense", lambda text, option: Noisy())
    with pytest.raises(UsageError, match="noisy does not declare deterministic = True"):
        DefenseMechanism.parse("noisy")


def test_a_random_defense_is_not_believed_to_be_deterministic() -> None:
    claimed = DefenseMechanism(Claimed(), "claimed", {"w.weight": 40})
    with pytest.raises(AuditError, match=r"Claimed \(test_missing_noise.py, line \d+\) declares"):
        verdict_without_trials(claimed, hypotheses(1.0), SEED)


NULL = torch.linspace(-1, 1, 10, dtype=torch.float64)
SIGN = DefenseMechanism.parse("sign").laid_out({"w.weight": 10})


@pytest.mark.parametrize(
    ("mechanism", "alternative", "epsilon", "words"),
    [
        (from_file(honest), NULL, 0.0, "gradient is the same with either value"),
        (NOISY, NULL, 0.0, "gradient is the same with either value"),
        (NOISY, 2 * NULL, 0.0, "the noiseless release is the same with either value"),
        (NOISY, -NULL, None, ""),
        (ClippedNoise(clip=1, sigma=0), -NULL, math.inf, "the mechanism adds no noise"),
        (SIGN, 2 * NULL, 0.0, "deterministic, so its release is certain: it is the same"),
        (SIGN, -NULL, math.inf, "deterministic, so its release is certain: the two values' differ"),
    ],
)
def test_what_a_law_decides_needs_no_trials(
    mechanism: Mechanism, alternative: Tensor, epsilon: float | None, words: str
) -> None:
    played = Hypotheses(NULL, alternative[None], torch.zeros(0, 10))
    verdict = verdict_without_trials(mechanism, played, SEED)
    assert (None if verdict is None else verdict.epsilon) == epsilon
    assert verdict is None or words in verdict.reason
