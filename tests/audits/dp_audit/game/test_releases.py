import pickle
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from dp_subject import clip, hypotheses, noise_that_no_seed_reaches, sums_under_loud_noise

from gradaudit.audits.dp_audit.game.hypotheses import (
    CommonNoise,
    Hypotheses,
    IntArray,
    releases_interleaved,
    reproducible,
)
from gradaudit.audits.dp_audit.mechanisms import FileMechanism, Mechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise

SEED = 11


def test_chunks_fit_the_memory() -> None:
    mechanism, played = ClippedNoise(clip=1, sigma=1), hypotheses(1.0)
    row = 40 * 4
    batches, order = [played.batch(played.null)], np.zeros(100, np.intp)
    turns = releases_interleaved(mechanism, batches, order, torch.Generator(), memory=30 * row)
    chunks = [chunk for _, chunk in turns]
    assert sum(map(len, chunks)) == 100
    assert max(len(chunk) * row for chunk in chunks) * 6 <= 30 * row


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


def states() -> tuple[object, ...]:
    """Of the global generators."""
    numpy_state = pickle.dumps(np.random.get_state())  # noqa: NPY002
    return torch.get_rng_state().tolist(), numpy_state, random.getstate()


def everywhere(generator: torch.Generator) -> list[float]:
    return [
        float(torch.rand((), generator=generator)),
        float(torch.rand(())),
        float(np.random.rand()),  # noqa: NPY002
        random.random(),
    ]


def test_randomness_repeats_by_seed_and_is_put_back() -> None:
    def draw(entropy: int) -> list[float]:
        with reproducible(entropy, torch.device("cpu")) as generator:
            return everywhere(generator)

    before = states()
    first, again, other = draw(1), draw(1), draw(2)
    after = states()
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert len(set(first)) == 4
    assert before == after


def test_common_noise_cancels() -> None:
    played = hypotheses(0.5, companions=3, values=2)
    common = CommonNoise(FileMechanism(sums_under_loud_noise, "f.py:m"), SEED)
    assert common.repeats(played.batch(played.null))
    variants = torch.cat([played.null[None], played.alternatives])
    released = common(variants, played.companions)
    expected = played.alternatives - played.null
    torch.testing.assert_close(released[1:] - released[0], expected, rtol=0, atol=2e-5)
    assert torch.equal(common(played.null, played.companions), released[0])


def test_noise_without_a_seed_does_not_cancel() -> None:
    played = hypotheses(0.5)
    assert not CommonNoise(FileMechanism(noise_that_no_seed_reaches, "f.py:m"), SEED).repeats(
        played.batch(played.null)
    )


@pytest.mark.parametrize(
    ("memory", "rows"), [(1, 1), (6 * 160, 1), (12 * 160, 2), (18 * 160 - 1, 2), (1 << 30, 6553)]
)
def test_a_chunk_has_as_many_rows_as_fit_six_copies_and_the_cache(memory: int, rows: int) -> None:
    """A row of 40 float32 takes 160 bytes, and 2²⁰ bytes stay in the cache."""
    mechanism, played = ClippedNoise(clip=1, sigma=1), hypotheses(1.0)
    batches, order = [played.batch(played.null)], np.zeros(3 * rows + 1, np.intp)
    chunks = releases_interleaved(mechanism, batches, order, torch.Generator(), memory)
    assert [len(where) for where, _ in chunks] == [rows] * 3 + [1]


def turns(
    mechanism: Mechanism, played: Hypotheses, count: int, memory: int
) -> Iterator[tuple[IntArray, torch.Tensor]]:
    """Releases under the null hypothesis and under the alternative, in an order of two and one."""
    order = np.arange(count) % 3 // 2
    return releases_interleaved(mechanism, played.batches, order, torch.Generator(), memory)


def test_noise_for_every_record_takes_room_for_every_record() -> None:
    mechanism = ClippedNoise(clip=1, sigma=1, per="record")
    played = hypotheses(1.0, companions=2)
    memory = 6 * 160 * (3 + 1) * 5
    assert max(len(where) for where, _ in turns(mechanism, played, 99, memory)) == 5


@pytest.mark.parametrize("foreign", [False, True])
def test_every_release_is_of_its_own_batch(foreign: bool) -> None:
    def still(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return clip(gradients, 5).sum(0)

    played = hypotheses(1.0)
    mechanism = FileMechanism(still, "f.py:m") if foreign else ClippedNoise(clip=5, sigma=0)
    released = torch.full((50, 40), torch.nan)
    for where, chunk in turns(mechanism, played, 50, memory=7 * 6 * 2 * 160):
        released[torch.from_numpy(where)] = chunk
    of_null, of_other = (batch[0] for batch in played.batches)
    for place, row in enumerate(released):
        torch.testing.assert_close(row, of_other if place % 3 == 2 else of_null)


def test_common_noise_is_differentiable_where_the_mechanism_is() -> None:
    def numpy_only(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.from_numpy(gradients.numpy().sum(axis=0))

    def detached(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return gradients.detach().sum(0)

    batch = hypotheses(0.5).batch(hypotheses(0.5).null)
    answers = {
        function: CommonNoise(FileMechanism(function, "f.py:m"), SEED).differentiable(batch)
        for function in (sums_under_loud_noise, numpy_only, detached)
    }
    assert list(answers.values()) == [True, False, False]
