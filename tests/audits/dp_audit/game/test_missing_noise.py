"""Statistics that faulty noise leaves open, through the game, beside what honest noise proves."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from dp_subject import clip, hypotheses

from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses, Ruler
from gradaudit.audits.dp_audit.game.missing_noise import (
    Panel,
    _Direction,
    cosine,
    lone_repeats,
    panel_of,
)
from gradaudit.audits.dp_audit.game.play import Rules, TrialsResult, play
from gradaudit.audits.dp_audit.mechanisms import FileMechanism
from gradaudit.errors import AuditError

SEED, DELTA = 3, 1e-5
Release = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def from_file(function: Release) -> FileMechanism:
    return FileMechanism(function, "f.py:m")


def game(
    function: Release, elements: int = 80, trials: int = 400, seed: int = SEED
) -> TrialsResult:
    return play(from_file(function), hypotheses(1.0, elements=elements), Rules(trials, DELTA), seed)


def noise(generator: torch.Generator, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=generator)


def honest(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return clip(gradients, 1).sum(0) + noise(generator, gradients.shape[1])


def one_number(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return gradients.sum(0) + 10 * noise(generator, 1)


def line(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    along = torch.linspace(1, 2, gradients.shape[1])
    return gradients.sum(0) + 20 * noise(generator, 1) * along


def half_the_space(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    elements = gradients.shape[1]
    mixed = torch.randn(elements // 2, elements, generator=torch.Generator().manual_seed(1))
    return gradients.sum(0) + 5 * noise(generator, elements // 2) @ mixed


def left_out(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    drawn = noise(generator, gradients.shape[1])
    return gradients.sum(0) + 3 * drawn * (torch.arange(len(drawn)) > 0)


def lattice(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return gradients.sum(0) + (100 * noise(generator, gradients.shape[1])).round() / 100


def scaled_by_data(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    size = 5 * gradients.norm()
    return gradients.sum(0) + size * noise(generator, gradients.shape[1])


FAULTS = {
    one_number: "projection onto the direction of least noise",
    line: "projection onto the direction of least noise",
    half_the_space: "projection onto the direction of least noise",
    left_out: "projection onto the direction of least noise",
    lattice: "phase on the lattice of the noise",
}


@pytest.mark.slow
@pytest.mark.parametrize("elements", [2, 30, 59, 60, 300])
@pytest.mark.parametrize("function", FAULTS)
def test_noise_that_is_missing_somewhere_proves_all_that_can_be(
    function: Release, elements: int
) -> None:
    """At any number of elements, and loud or not: there is not one error."""
    result = game(function, elements)
    bound = result.scores["projection"].bound
    assert (bound.value, bound.flawless) == (bound.ceiling, True)
    assert result.reads == FAULTS[function]


@pytest.mark.parametrize("turned", [False, True])
def test_a_scale_that_tells_the_value_is_read_off_the_distance(turned: bool) -> None:
    """Noise five times the record's norm, which is .1 or 1, would hide the projection."""
    played = hypotheses(1.0, elements=80)
    if turned:
        played = Hypotheses(played.alternatives[0], played.null[None], played.companions)
    result = play(from_file(scaled_by_data), played, Rules(400, DELTA), SEED)
    assert result.reads == "distance from the null hypothesis's mean"
    assert result.scores["projection"].bound.flawless


def test_honest_noise_proves_no_more_than_its_epsilon() -> None:
    """A Gaussian mechanism's at μ = 1: 4.38 at δ = 1e-5."""
    bounds = [game(honest, trials=200, seed=seed).scores["projection"].bound for seed in range(8)]
    assert max(bound.value for bound in bounds) < 4.38


@pytest.mark.slow
def test_noise_that_is_left_out_at_times_shows_where_there_are_enough_releases() -> None:
    """Once in ten, in 2 × 10,000 releases: about 2,000 give the value away."""

    def skipped(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        some = torch.rand((), generator=generator) > 0.1
        return gradients.sum(0) + some * 3 * noise(generator, gradients.shape[1])

    result = game(skipped, trials=10_000)
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

    def skipped(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        some = torch.rand((), generator=generator) > 0.05
        return gradients.sum(0) + some * 3 * noise(generator, gradients.shape[1])

    found, none = (game(function).scores["projection"] for function in (skipped, honest))
    assert 20 < lone_repeats(found.null, found.alternative) < 70
    assert lone_repeats(none.null, none.alternative) == 0


def test_the_gaussian_bound_stays_with_the_projection() -> None:
    """Whatever takes its place: the phase of a lattice follows no normal law."""
    declared = FileMechanism(lattice, "f.py:m", "gaussian")
    result = play(declared, hypotheses(1.0, elements=20), Rules(1000, DELTA), SEED)
    assert result.reads
    assert result.gaussian is not None
    assert result.gaussian.mu_estimate == pytest.approx(1, abs=0.2)


def test_the_cosine_is_that_of_dense_vectors() -> None:
    draw = torch.Generator().manual_seed(0)
    centre, towards, releases = (
        torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((9,), (9,), (50, 9))
    )
    releases[0], releases[1] = centre, centre + towards
    scores = Ruler(centre, towards).scores(releases)
    middle = releases - centre - towards / 2
    expected = torch.cosine_similarity(middle, towards.expand_as(middle), dim=1)
    found = cosine(scores, float(towards.norm()))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert found[:2].tolist() == pytest.approx([-1, 1])
    assert cosine(np.array([[0.5], [0.5]]), 1.0).tolist() == [0.0], "in the middle itself"


@pytest.mark.parametrize("elements", [3, 40])
def test_the_direction_of_least_noise_is_fishers_discriminant(elements: int) -> None:
    """Against the dense inverse, of more looks than elements and of fewer."""
    draw = torch.Generator().manual_seed(0)
    null, other = torch.randn(2, 12, elements, generator=draw, dtype=torch.float64)
    towards = torch.randn(elements, generator=draw, dtype=torch.float64)
    found = _Direction.of(null, other, Ruler(null.mean(dim=0), towards)).weights
    rows = torch.cat([null - null.mean(dim=0), other - other.mean(dim=0)])
    scale = rows.square().mean(dim=0).sqrt()
    correlations = (rows / scale).T @ (rows / scale) / len(rows)
    ridge = 1e-12 * torch.eye(elements, dtype=torch.float64)
    expected = torch.linalg.solve(correlations + ridge, towards / scale) / scale
    torch.testing.assert_close(found, expected / expected.norm(), rtol=0, atol=1e-4)
    assert float(found.norm()) == pytest.approx(1)


def test_a_panel_scores_every_statistic_and_keeps_the_one_that_is_chosen() -> None:
    ruler = Ruler(torch.zeros(4).double(), torch.ones(4).double())
    panel = Panel(ruler, {"first": lambda r, s: s[0] + 1, "sum": lambda r, s: r.sum(1).numpy()})
    releases = torch.arange(12.0).view(3, 4)
    scores = panel.scores(releases)
    assert panel.names == ("projection", "distance", "first", "sum")
    np.testing.assert_allclose(scores[:2], ruler.scores(releases))
    np.testing.assert_allclose(scores[2:], [scores[0] + 1, releases.sum(dim=1)])
    assert panel.only("sum").names == ("projection", "distance", "sum")
    assert panel.only("").names == ruler.names


def test_a_batched_form_that_repeats_its_noise_is_refused() -> None:
    def mechanism(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return honest(gradients, generator)

    def releases(gradients: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
        return honest(gradients, generator).expand(count, -1)

    mechanism.releases = releases  # type: ignore[attr-defined]
    played = hypotheses(1.0)
    ruler = Ruler(played.null, played.alternatives[0] - played.null)
    with pytest.raises(AuditError, match="repeats one release within a batch"):
        panel_of(from_file(mechanism), played, ruler, SEED)
    assert math.isfinite(float(ruler.towards.norm()))
