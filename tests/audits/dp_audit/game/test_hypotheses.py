"""Releases in chunks and portions, common noise, and the statistics that tell releases apart."""

import pickle
import random

import numpy as np
import pytest
import torch
from dp_subject import (
    Release,
    clip,
    deaf,
    from_file,
    hypotheses,
    noise_that_no_seed_reaches,
    sums_under_loud_noise,
)
from torch import Generator, Tensor

from gradaudit.audits.dp_audit.game.hypotheses import (
    _LEAST_RELEASES,
    CommonNoise,
    Hypotheses,
    ReleaseStatistics,
    known_statistics,
    laws_of,
    pilot_ruler,
    releases_interleaved,
    reproducible,
    score_releases,
    shifts,
    way,
)
from gradaudit.audits.dp_audit.mechanisms import Mechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.core.noise_laws import Noise
from gradaudit.progress import Advance

SEED = 5
NOISY = ClippedNoise(clip=1, sigma=1)


def statistics_of(mechanism: ClippedNoise, played: Hypotheses) -> ReleaseStatistics:
    return known_statistics(mechanism.law(played.records), played)


def scored(
    order: np.ndarray,
    memory: int,
    played: Hypotheses | None = None,
    mechanism: ClippedNoise = NOISY,
    advance: Advance = lambda units: None,
) -> np.ndarray:
    played = played or hypotheses(1.0)
    statistics, batches = statistics_of(mechanism, played), played.batches
    return score_releases(
        mechanism, batches, statistics, order, SEED, memory=memory, advance=advance
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_scores_are_the_definitions(noise: Noise, dtype: torch.dtype) -> None:
    played = hypotheses(1.0, companions=2)
    mechanism = ClippedNoise(clip=0.8, sigma=0.5, noise=noise)
    null, other = (
        mechanism.mean(torch.cat([row[None], played.companions])).numpy()
        for row in (played.null, played.alternatives[0])
    )
    releases = torch.randn(9, 40, generator=Generator().manual_seed(1)).to(dtype)
    projection, distance = statistics_of(mechanism, played).scores(releases)
    rows, single = releases.double().numpy(), noise == "gaussian" and dtype == torch.float32
    lengths = np.linalg.norm(rows - null, axis=1)
    np.testing.assert_allclose(distance, lengths, rtol=1e-6 if single else 1e-12)
    expected = (rows - null) @ (other - null) / np.linalg.norm(other - null)
    if noise == "laplace":
        expected = (np.abs(rows - null) - np.abs(rows - other)).sum(axis=1) / (0.5 / 3)
    atol = 2e-6 if single else 1e-12
    np.testing.assert_allclose(projection, expected, rtol=1e-9, atol=atol)


@pytest.mark.parametrize("tiny", [1.0, 1e-7])
def test_scores_of_single_precision_err_by_little_of_their_spread(tiny: float) -> None:
    """Around a centre of a thousand times the noise, that float32 does not hold; in many blocks."""
    rows = torch.randn(10, 70_000, generator=Generator().manual_seed(1), dtype=torch.float64)
    statistics, releases = (
        ReleaseStatistics(1e3 * rows[0], tiny * rows[1]),
        (1e3 * rows[0] + rows[2:]).float(),
    )
    error = np.abs(statistics.scores(releases) - statistics.scores(releases.double())).max(axis=1)
    assert error[0] < 1e-4, "of a spread of 1"
    assert error[1] < 1e-3, "of a spread of 0.7"


@pytest.mark.parametrize("unit", [1e-30, 1e-18, 1e18, 1e30])
def test_scores_of_single_precision_have_the_unit_of_releases(unit: float) -> None:
    """A row that float32 can square stands between two that it cannot."""
    draw = Generator().manual_seed(1)
    towards, *rows = torch.randn(4, 40, generator=draw, dtype=torch.float64)
    releases = torch.stack([unit * rows[0], rows[1], unit * rows[2]]).float()
    statistics = ReleaseStatistics(torch.zeros(40, dtype=torch.float64), towards)
    expected = statistics.scores(releases.double())
    np.testing.assert_allclose(statistics.scores(releases), expected, rtol=2e-5)


@pytest.mark.parametrize(("values", "companions"), [(1, 3), (3, 0)])
def test_the_law_knows_the_shifts_and_a_mixture_is_ruled_by_their_mean(
    values: int, companions: int
) -> None:
    played = hypotheses(0.3, values=values, companions=companions)
    mechanism = ClippedNoise(clip=5, sigma=0.5)
    law = mechanism.law(played.records)
    moved = (played.alternatives - played.null) / played.records
    mean = moved.mean(dim=0)
    torch.testing.assert_close(shifts(law, played), moved)
    torch.testing.assert_close(known_statistics(law, played).towards, mean)
    laws = laws_of(law, played, known_statistics(law, played))
    assert laws["projection"].shifts == pytest.approx((moved @ mean / mean.norm()).tolist())
    assert laws["distance"].shifts == pytest.approx(moved.norm(dim=1).tolist())
    assert laws["projection"].sigma == laws["distance"].sigma == 0.5 / played.records
    assert laws["distance"].elements == 40


def test_only_gaussian_noise_has_laws() -> None:
    played = hypotheses(1.0)
    law = ClippedNoise(clip=5, sigma=0.5, noise="laplace").law(1)
    assert laws_of(law, played, known_statistics(law, played)) == {}
    assert laws_of(None, played, ReleaseStatistics(played.null, played.null)) == {}


@pytest.mark.parametrize("per", ["sum", "record"])
def test_memory_does_not_change_the_scores(per: str) -> None:
    mechanism = ClippedNoise(clip=1, sigma=1, per=per)
    played, order = hypotheses(1.0, companions=2), np.random.default_rng(0).integers(2, size=100)
    small, large = (scored(order, memory, played, mechanism) for memory in (1, 1 << 30))
    np.testing.assert_allclose(small, large, rtol=0, atol=1e-14)


def test_portions_of_releases_have_noise_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradaudit.audits.dp_audit.game.hypotheses._PORTION", 1)
    few, many = (
        scored(np.zeros(count, int), 1 << 20)
        for count in (_LEAST_RELEASES, 2 * _LEAST_RELEASES + 1)
    )
    first, second, last = np.split(many, [_LEAST_RELEASES, 2 * _LEAST_RELEASES], axis=1)
    assert last.shape == (2, 1)
    np.testing.assert_array_equal(first, few)
    assert not np.intersect1d(first, second).size
    assert not np.intersect1d(last, second).size


@pytest.mark.parametrize(
    ("memory", "rows"),
    [
        (1, 1),
        (6 * 160, 1),
        (12 * 160, 2),
        (18 * 160 - 1, 2),
        (6 * 160 * 68, 68),
        (1 << 30, (1 << 20) // 160),
    ],
)
def test_every_release_is_told_in_chunks_that_fit(memory: int, rows: int) -> None:
    """Of 160 bytes each, with six working copies; on the processor in chunks of a mebibyte."""
    heard: list[int] = []
    scores = scored(np.zeros(2 * rows + 1, int), memory, advance=heard.append)
    assert heard == [rows, rows, 1]
    assert scores.shape == (2, 2 * rows + 1)


def test_noise_for_every_record_takes_room_for_every_record() -> None:
    heard: list[int] = []
    mechanism, played = ClippedNoise(clip=1, sigma=1, per="record"), hypotheses(1.0, companions=2)
    scored(np.zeros(99, int), 6 * 160 * (3 + 1) * 5, played, mechanism, heard.append)
    assert max(heard) == 5


def test_code_that_is_not_known_is_asked_in_just_the_order_of_the_coins() -> None:
    asked: list[float] = []

    def stateful(gradients: Tensor, generator: Generator) -> Tensor:
        asked.append(float(gradients[0, 0]))
        return gradients[0] + len(asked)

    batches, order = (
        hypotheses(1.0, values=2).batches,
        np.random.default_rng(0).integers(3, size=50),
    )
    released = torch.empty(50, 40)
    turns = releases_interleaved(
        from_file(stateful), batches, order, Generator(), memory=7 * 40 * 4 * 12
    )
    for which, chunk in turns:
        released[torch.from_numpy(which)] = chunk
    assert asked == [float(batches[index][0, 0]) for index in order]
    expected = torch.stack([batches[i][0] + n + 1 for n, i in enumerate(order)])
    torch.testing.assert_close(released, expected)


def still(gradients: Tensor, generator: Generator) -> Tensor:
    return clip(gradients, 5).sum(0)


@pytest.mark.parametrize("mechanism", [from_file(still), ClippedNoise(clip=5, sigma=0)])
def test_every_release_is_of_its_own_batch(mechanism: Mechanism) -> None:
    batches, order = hypotheses(1.0).batches, np.arange(50) % 3 // 2
    released = torch.full((50, 40), torch.nan)
    memory = 7 * 6 * 2 * 160
    for where, chunk in releases_interleaved(mechanism, batches, order, Generator(), memory):
        released[torch.from_numpy(where)] = chunk
    torch.testing.assert_close(released, torch.stack([batches[index][0] for index in order]))


def states() -> tuple[object, ...]:
    """Of the global generators."""
    numpy_state = pickle.dumps(np.random.get_state())  # noqa: NPY002
    return torch.get_rng_state().tolist(), numpy_state, random.getstate()


def everywhere(entropy: int) -> list[float]:
    with reproducible(entropy, torch.device("cpu")) as generator:
        return [
            float(torch.rand((), generator=generator)),
            float(torch.rand(())),
            float(np.random.rand()),  # noqa: NPY002
            random.random(),
        ]


def test_randomness_repeats_by_seed_and_is_put_back_also_after_a_failure() -> None:
    before = states()
    first, again, other = map(everywhere, (1, 1, 2))
    with pytest.raises(ZeroDivisionError), reproducible(1, torch.device("cpu")):
        torch.rand(3) / (1 // 0)
    assert before == states()
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert len(set(first)) == 4


def test_common_noise_cancels_where_a_seed_reaches_it() -> None:
    played = hypotheses(0.5, companions=3, values=2)
    common = CommonNoise(from_file(sums_under_loud_noise), SEED)
    assert common.repeats(played.batch(played.null))
    variants = torch.cat([played.null[None], played.alternatives])
    released = common(variants, played.companions)
    expected = played.alternatives - played.null
    torch.testing.assert_close(released[1:] - released[0], expected, rtol=0, atol=2e-5)
    assert torch.equal(common(played.null, played.companions), released[0])
    unseeded = CommonNoise(from_file(noise_that_no_seed_reaches), SEED)
    assert not unseeded.repeats(played.batch(played.null))


@pytest.mark.parametrize(
    ("function", "differentiable"),
    [
        (sums_under_loud_noise, True),
        (lambda gradients, generator: torch.from_numpy(gradients.numpy().sum(axis=0)), False),
        (lambda gradients, generator: gradients.detach().sum(0), False),
    ],
)
def test_common_noise_is_differentiable_where_the_mechanism_is(
    function: Release, differentiable: bool
) -> None:
    batch = hypotheses(0.5).batch(hypotheses(0.5).null)
    assert CommonNoise(from_file(function), SEED).differentiable(batch) is differentiable


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_shifts_that_cancel_are_ruled_by_the_largest(noise: Noise) -> None:
    null = hypotheses(0.5).null
    away = hypotheses(0.5).alternatives[0] - null
    played = Hypotheses(null, torch.stack([null + away, null - away]), torch.zeros(0, len(null)))
    mechanism = ClippedNoise(clip=10, sigma=1, noise=noise)
    statistics = statistics_of(mechanism, played)
    torch.testing.assert_close(statistics.towards.abs(), away.abs())
    assert statistics.projection(shifts(mechanism.law(1), played)).isfinite().all()


def test_clipping_that_hides_a_shift_leaves_the_gradients_to_rule() -> None:
    null = torch.ones(4, dtype=torch.float64)
    played = Hypotheses(null, 2 * null[None], torch.zeros(0, 4))
    torch.testing.assert_close(statistics_of(NOISY, played).towards, null)
    with pytest.raises(ValueError, match="do not differ"):
        way(torch.zeros(1, 4), Hypotheses(null, null[None], torch.zeros(0, 4)))


@pytest.mark.parametrize(
    ("function", "cosine"),
    [(sums_under_loud_noise, 0.9999), (noise_that_no_seed_reaches, 0.99), (deaf, 0.9999)],
)
def test_the_ruler_points_from_one_hypothesis_to_the_other(
    function: Release, cosine: float
) -> None:
    """Where releases do not differ, by the gradients."""
    played = hypotheses(0.5, values=2)
    statistics = pilot_ruler(from_file(function), played, 500, SEED, memory=1 << 20)
    expected = played.alternatives.mean(dim=0) - played.null
    assert torch.cosine_similarity(statistics.towards, expected, dim=0) > cosine
    assert statistics.laplace is None


@pytest.mark.slow
def test_the_centre_is_the_mean_release() -> None:
    played = hypotheses(0.5)
    statistics = pilot_ruler(from_file(noise_that_no_seed_reaches), played, 900, SEED, memory=1)
    error = (statistics.centre - played.null).norm() / (0.05 * 40**0.5 / 30)
    assert 0.5 < error < 1.6
