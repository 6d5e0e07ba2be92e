import random

import numpy as np
import torch
from dp_subject import hypotheses, noise_that_no_seed_reaches, sums_under_loud_noise

from gradaudit.dp.degenerate import watched_randomness
from gradaudit.dp.hypotheses import (
    CommonNoise,
    releases_interleaved,
    reproducible,
)
from gradaudit.dp.mechanisms import FileMechanism
from gradaudit.dp.mechanisms.clipped_noise import ClippedNoise

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

    with watched_randomness(torch.Generator()) as state:
        before = state()
        first, again, other = draw(1), draw(1), draw(2)
        after = state()
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
