import random

import numpy as np
import pytest
import torch
from dp_subject import board

from gradaudit.dp.board import (
    Board,
    Ruler,
    known_ruler,
    releases_in_chunks,
    score_releases,
    shifts,
    way,
)
from gradaudit.dp.mechanisms import FileMechanism
from gradaudit.dp.mechanisms.clipped_noise import ClippedNoise
from gradaudit.dp.randomness import randomness_state, reproducible

SEED = np.random.SeedSequence(5)


def ruler_of(mechanism: ClippedNoise) -> Ruler:
    return known_ruler(mechanism, board(1.0, companions=2))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_scores_are_the_definitions(noise: str) -> None:
    played = board(1.0, companions=2)
    mechanism = ClippedNoise(clip=0.8, sigma=0.5, noise=noise)
    null, other = (
        mechanism.mean(torch.cat([row[None], played.companions])).numpy()
        for row in (played.null, played.alternatives[0])
    )
    releases = torch.randn(9, 40, generator=torch.Generator().manual_seed(1))
    projection, distance = known_ruler(mechanism, played).scores(releases)
    rows = releases.double().numpy()
    np.testing.assert_allclose(distance, np.linalg.norm(rows - null, axis=1), rtol=1e-12)
    if noise == "gaussian":
        direction = (other - null) / np.linalg.norm(other - null)
        expected = (rows - null) @ direction
    else:
        scale = 0.5 / 3
        expected = (np.abs(rows - null) - np.abs(rows - other)).sum(axis=1) / scale
    np.testing.assert_allclose(projection, expected, rtol=1e-9, atol=1e-12)


def test_a_mixture_is_ruled_by_the_mean_of_its_shifts() -> None:
    played = board(0.3, values=3)
    mechanism = ClippedNoise(clip=1, sigma=1)
    moved = shifts(mechanism, played)
    torch.testing.assert_close(
        moved, mechanism.mean_of(played.alternatives, played.companions) - played.null
    )
    torch.testing.assert_close(known_ruler(mechanism, played).towards, moved.mean(dim=0))


@pytest.mark.parametrize(
    "mechanism", [ClippedNoise(clip=1, sigma=1, per=per) for per in ("sum", "record")]
)
def test_memory_does_not_change_the_scores(mechanism: ClippedNoise) -> None:
    played = board(1.0, companions=2)
    batch = played.batch(played.null)
    small, large = (
        score_releases(
            mechanism,
            batch,
            known_ruler(mechanism, played),
            100,
            SEED,
            memory=memory,
            advance=lambda units: None,
        )
        for memory in (1, 1 << 30)
    )
    np.testing.assert_allclose(small, large, rtol=0, atol=1e-14)


def test_chunks_fit_the_memory() -> None:
    mechanism, played = ClippedNoise(clip=1, sigma=1), board(1.0)
    row = 40 * 4
    chunks = list(
        releases_in_chunks(
            mechanism, played.batch(played.null), 100, torch.Generator(), memory=30 * row
        )
    )
    assert sum(map(len, chunks)) == 100
    assert max(len(chunk) * row for chunk in chunks) * 6 <= 30 * row


def test_every_release_is_told() -> None:
    mechanism, played, heard = ClippedNoise(clip=1, sigma=1), board(1.0), []
    scores = score_releases(
        mechanism,
        played.batch(played.null),
        known_ruler(mechanism, played),
        1000,
        SEED,
        memory=1 << 16,
        advance=heard.append,
    )
    assert sum(heard) == 1000 == scores.shape[1]


def everywhere(generator: torch.Generator) -> list[float]:
    return [
        float(torch.rand((), generator=generator)),
        float(torch.rand(())),
        float(np.random.rand()),  # noqa: NPY002
        random.random(),
    ]


def test_randomness_repeats_by_seed_and_is_put_back() -> None:
    def draw(entropy: int) -> list[float]:
        with reproducible(np.random.SeedSequence(entropy), torch.device("cpu")) as generator:
            return everywhere(generator)

    before = torch.Generator().manual_seed(3)
    state = randomness_state(before)
    first, again, other = draw(1), draw(1), draw(2)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert len(set(first)) == 4
    assert randomness_state(before) == state


@pytest.mark.parametrize("place", range(4))
def test_a_draw_from_anywhere_changes_the_state(place: int) -> None:
    with reproducible(SEED, torch.device("cpu")) as generator:
        state = randomness_state(generator)
        draws = (
            lambda: torch.rand((), generator=generator),
            lambda: torch.rand(()),
            lambda: np.random.rand(),  # noqa: NPY002
            random.random,
        )
        draws[place]()
        assert randomness_state(generator) != state


def test_a_mechanism_that_fails_half_way_leaves_randomness_as_it_was() -> None:
    def broken(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        torch.rand(3)
        raise ValueError("no")

    played = board(1.0)
    before = torch.get_rng_state()
    with pytest.raises(Exception, match="ValueError: no"):
        score_releases(
            FileMechanism(broken, "f.py:m"),
            played.batch(played.null),
            Ruler(played.null, played.null),
            3,
            SEED,
            memory=1,
            advance=lambda units: None,
        )
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_shifts_that_cancel_are_ruled_by_the_largest(noise: str) -> None:
    away = board(0.5).alternatives[0] - board(0.5).null
    null = board(0.5).null
    played = Board(null, torch.stack([null + away, null - away]), torch.zeros(0, len(null)))
    mechanism = ClippedNoise(clip=10, sigma=1, noise=noise)  # type: ignore[arg-type]
    ruler = known_ruler(mechanism, played)
    torch.testing.assert_close(ruler.towards.abs(), away.abs())
    assert ruler.projection(shifts(mechanism, played)).isfinite().all()


def test_clipping_that_hides_a_shift_leaves_the_gradients_to_rule() -> None:
    null = torch.ones(4, dtype=torch.float64)
    played = Board(null, 2 * null[None], torch.zeros(0, 4))
    ruler = known_ruler(ClippedNoise(clip=1, sigma=1), played)
    torch.testing.assert_close(ruler.towards, null)


def test_equal_gradients_have_no_way() -> None:
    null = torch.ones(4)
    played = Board(null, null[None], torch.zeros(0, 4))
    with pytest.raises(ValueError, match="do not differ"):
        way(torch.zeros(1, 4), played)
