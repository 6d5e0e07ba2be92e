import os
import random
import secrets
from collections.abc import Callable

import numpy as np
import pytest
import torch
from dp_subject import hypotheses

from gradaudit.dp.degenerate import watched_randomness
from gradaudit.dp.hypotheses import (
    Hypotheses,
    Ruler,
    known_ruler,
    score_releases,
    shifts,
    way,
)
from gradaudit.dp.mechanisms import FileMechanism
from gradaudit.dp.mechanisms.clipped_noise import ClippedNoise
from gradaudit.dp.releases import releases_in_chunks, releases_interleaved, reproducible

SEED = np.random.SeedSequence(5)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_scores_are_the_definitions(noise: str) -> None:
    played = hypotheses(1.0, companions=2)
    mechanism = ClippedNoise(clip=0.8, sigma=0.5, noise=noise)
    null, other = (
        mechanism.mean(torch.cat([row[None], played.companions])).numpy()
        for row in (played.null, played.alternatives[0])
    )
    releases = torch.randn(9, 40, generator=torch.Generator().manual_seed(1))
    projection, distance = known_ruler(mechanism.law(played.records), played).scores(releases)
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
    played = hypotheses(0.3, values=3)
    mechanism = ClippedNoise(clip=1, sigma=1)
    moved = shifts(mechanism.law(played.records), played)
    torch.testing.assert_close(
        moved, mechanism.noiseless(played.alternatives, played.companions) - played.null
    )
    torch.testing.assert_close(
        known_ruler(mechanism.law(played.records), played).towards, moved.mean(dim=0)
    )


@pytest.mark.parametrize(
    "mechanism", [ClippedNoise(clip=1, sigma=1, per=per) for per in ("sum", "record")]
)
def test_memory_does_not_change_the_scores(mechanism: ClippedNoise) -> None:
    played = hypotheses(1.0, companions=2)
    batches = [played.batch(record) for record in (played.null, *played.alternatives)]
    order = np.random.default_rng(0).integers(2, size=100)
    small, large = (
        score_releases(
            mechanism,
            batches,
            known_ruler(mechanism.law(played.records), played),
            order,
            SEED,
            memory=memory,
            advance=lambda units: None,
        )
        for memory in (1, 1 << 30)
    )
    np.testing.assert_allclose(small, large, rtol=0, atol=1e-14)


def test_chunks_fit_the_memory() -> None:
    mechanism, played = ClippedNoise(clip=1, sigma=1), hypotheses(1.0)
    row = 40 * 4
    chunks = list(
        releases_in_chunks(
            mechanism, played.batch(played.null), 100, torch.Generator(), memory=30 * row
        )
    )
    assert sum(map(len, chunks)) == 100
    assert max(len(chunk) * row for chunk in chunks) * 6 <= 30 * row


def test_every_release_is_told() -> None:
    mechanism, played, heard = ClippedNoise(clip=1, sigma=1), hypotheses(1.0), []
    scores = score_releases(
        mechanism,
        [played.batch(played.null)],
        known_ruler(mechanism.law(played.records), played),
        np.zeros(1000, int),
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

    with watched_randomness(torch.Generator()) as state:
        before = state()
        first, again, other = draw(1), draw(1), draw(2)
        after = state()
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert len(set(first)) == 4
    assert before == after


class Holder:
    """Keeps generators where a class, a closure or a file may keep them."""

    def __init__(self) -> None:
        self.kept = np.random.default_rng(1)
        self.old = {"here": np.random.RandomState(2)}
        self.python = (random.Random(3),)
        self.torch = torch.Generator().manual_seed(4)


HOLDER = Holder()
DRAWS = {
    "torch": lambda: torch.rand(()),
    "numpy": lambda: np.random.rand(),  # noqa: NPY002
    "python": random.random,
    "an attribute": lambda: HOLDER.kept.random(),
    "a dictionary": lambda: HOLDER.old["here"].rand(),
    "a tuple": lambda: HOLDER.python[0].random(),
    "a generator of torch": lambda: torch.rand((), generator=HOLDER.torch),
    "fresh numpy": lambda: np.random.default_rng().random(),
    "secrets": lambda: secrets.randbelow(5),
    "the system": lambda: os.urandom(4),
    "random.SystemRandom": lambda: random.SystemRandom().random(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_from_anywhere_changes_the_state(draw: Callable[[], object]) -> None:
    given = torch.Generator()
    with watched_randomness(given) as state:
        before = state()
        assert state() == before
        draw()
        assert state() != before
        again = state()
        torch.rand((), generator=given)
        assert state() != again


def test_watching_leaves_the_sources_as_they_were() -> None:
    sources = os.urandom, random._urandom  # type: ignore[attr-defined]
    with watched_randomness(torch.Generator()):
        assert os.urandom is not sources[0]
    assert (os.urandom, random._urandom) == sources  # type: ignore[attr-defined]


def test_code_that_is_not_known_is_asked_in_just_the_order_of_the_coins() -> None:
    asked: list[float] = []

    def stateful(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        asked.append(float(gradients[0, 0]))
        return gradients[0] + len(asked)

    played = hypotheses(1.0, values=2)
    batches = [played.batch(record) for record in (played.null, *played.alternatives)]
    order = np.random.default_rng(0).integers(3, size=50)
    released = torch.empty(50, 40)
    mechanism = FileMechanism(stateful, "f.py:m")
    generator = torch.Generator()
    for which, chunk in releases_interleaved(mechanism, batches, order, generator, 7 * 40 * 4 * 12):
        released[torch.from_numpy(which)] = chunk
    assert asked == [float(batches[index][0, 0]) for index in order]
    torch.testing.assert_close(
        released, torch.stack([batches[i][0] + n + 1 for n, i in enumerate(order)])
    )


def test_a_mechanism_that_fails_half_way_leaves_randomness_as_it_was() -> None:
    def broken(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        torch.rand(3)
        raise ValueError("no")

    played = hypotheses(1.0)
    before = torch.get_rng_state()
    with pytest.raises(Exception, match="ValueError: no"):
        score_releases(
            FileMechanism(broken, "f.py:m"),
            [played.batch(played.null)],
            Ruler(played.null, played.null),
            np.zeros(3, int),
            SEED,
            memory=1,
            advance=lambda units: None,
        )
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_shifts_that_cancel_are_ruled_by_the_largest(noise: str) -> None:
    away = hypotheses(0.5).alternatives[0] - hypotheses(0.5).null
    null = hypotheses(0.5).null
    played = Hypotheses(null, torch.stack([null + away, null - away]), torch.zeros(0, len(null)))
    mechanism = ClippedNoise(clip=10, sigma=1, noise=noise)  # type: ignore[arg-type]
    ruler = known_ruler(mechanism.law(played.records), played)
    torch.testing.assert_close(ruler.towards.abs(), away.abs())
    assert ruler.projection(shifts(mechanism.law(played.records), played)).isfinite().all()


def test_clipping_that_hides_a_shift_leaves_the_gradients_to_rule() -> None:
    null = torch.ones(4, dtype=torch.float64)
    played = Hypotheses(null, 2 * null[None], torch.zeros(0, 4))
    ruler = known_ruler(ClippedNoise(clip=1, sigma=1).law(1), played)
    torch.testing.assert_close(ruler.towards, null)


def test_equal_gradients_have_no_way() -> None:
    null = torch.ones(4)
    played = Hypotheses(null, null[None], torch.zeros(0, 4))
    with pytest.raises(ValueError, match="do not differ"):
        way(torch.zeros(1, 4), played)
