import numpy as np
import pytest
import torch
from dp_subject import hypotheses, noise_that_no_seed_reaches, sums_under_loud_noise

from gradaudit.audits.dp_audit.game.hypotheses import (
    _LEAST_RELEASES,
    Hypotheses,
    Ruler,
    known_ruler,
    laws_of,
    pilot_releases,
    pilot_ruler,
    score_releases,
    shifts,
    way,
)
from gradaudit.audits.dp_audit.mechanisms import FileMechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise

SEED = 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_scores_are_the_definitions(noise: str, dtype: torch.dtype) -> None:
    played = hypotheses(1.0, companions=2)
    mechanism = ClippedNoise(clip=0.8, sigma=0.5, noise=noise)
    null, other = (
        mechanism.mean(torch.cat([row[None], played.companions])).numpy()
        for row in (played.null, played.alternatives[0])
    )
    releases = torch.randn(9, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
    projection, distance = known_ruler(mechanism.law(played.records), played).scores(releases)
    rows = releases.double().numpy()
    single = noise == "gaussian" and dtype == torch.float32
    np.testing.assert_allclose(
        distance, np.linalg.norm(rows - null, axis=1), rtol=1e-6 if single else 1e-12
    )
    if noise == "gaussian":
        direction = (other - null) / np.linalg.norm(other - null)
        expected = (rows - null) @ direction
    else:
        scale = 0.5 / 3
        expected = (np.abs(rows - null) - np.abs(rows - other)).sum(axis=1) / scale
    atol = 2e-6 if single else 1e-12
    np.testing.assert_allclose(projection, expected, rtol=1e-9, atol=atol)


@pytest.mark.parametrize("tiny", [1.0, 1e-7])
def test_scores_of_single_precision_err_by_little_of_their_spread(tiny: float) -> None:
    """Around a centre of a thousand times the noise, that float32 does not hold; in many blocks."""
    generator = torch.Generator().manual_seed(1)
    centre, towards, noise = (
        torch.randn(count, 70_000, generator=generator, dtype=torch.float64) for count in (1, 1, 8)
    )
    ruler = Ruler(1e3 * centre[0], tiny * towards[0])
    releases = (1e3 * centre + noise).float()
    single, double = ruler.scores(releases), ruler.scores(releases.double())
    error = np.abs(single - double).max(axis=1)
    assert error[0] < 1e-4, "of a spread of 1"
    assert error[1] < 1e-3, "of a spread of 0.7"


@pytest.mark.parametrize("unit", [1e-30, 1e-18, 1e18, 1e30])
def test_scores_of_single_precision_have_the_unit_of_releases(unit: float) -> None:
    """A row that float32 can square stands between two that it cannot."""
    generator = torch.Generator().manual_seed(1)
    towards, *rows = torch.randn(4, 40, generator=generator, dtype=torch.float64)
    releases = torch.stack([unit * rows[0], rows[1], unit * rows[2]]).float()
    ruler = Ruler(torch.zeros(40, dtype=torch.float64), towards)
    expected = ruler.scores(releases.double())
    np.testing.assert_allclose(ruler.scores(releases), expected, rtol=2e-5)


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


def test_the_law_knows_the_pair() -> None:
    played = hypotheses(1.0, companions=3)
    law = ClippedNoise(clip=5, sigma=0.5).law(played.records)
    laws = laws_of(law, played, known_ruler(law, played))
    assert laws["projection"].shifts == pytest.approx([1 / 4])
    assert laws["projection"].sigma == laws["distance"].sigma == 0.5 / 4
    assert laws["distance"].shifts == pytest.approx([1 / 4])
    assert laws["distance"].elements == 40


def test_a_mixture_is_a_law_of_several_shifts() -> None:
    played = hypotheses(0.3, values=3)
    law = ClippedNoise(clip=5, sigma=0.5).law(played.records)
    laws = laws_of(law, played, known_ruler(law, played))
    assert laws["distance"].shifts == pytest.approx([0.3, 0.6, 0.9])
    moved = played.alternatives - played.null
    direction = moved.mean(dim=0) / moved.mean(dim=0).norm()
    assert laws["projection"].shifts == pytest.approx((moved @ direction).tolist())


def test_only_gaussian_noise_has_laws() -> None:
    played = hypotheses(1.0)
    law = ClippedNoise(clip=5, sigma=0.5, noise="laplace").law(1)
    assert laws_of(law, played, known_ruler(law, played)) == {}
    assert laws_of(None, played, Ruler(played.null, played.null)) == {}


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


def test_portions_of_releases_have_noise_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradaudit.audits.dp_audit.game.hypotheses._PORTION", 1)
    mechanism, played = ClippedNoise(clip=1, sigma=1), hypotheses(1.0)
    few, many = (
        score_releases(
            mechanism,
            [played.batch(played.null)],
            known_ruler(mechanism.law(1), played),
            np.zeros(count, int),
            SEED,
            memory=1 << 20,
            advance=lambda units: None,
        )
        for count in (_LEAST_RELEASES, 2 * _LEAST_RELEASES + 1)
    )
    assert many.shape == (2, 2 * _LEAST_RELEASES + 1)
    first, second, last = np.split(many, [_LEAST_RELEASES, 2 * _LEAST_RELEASES], axis=1)
    np.testing.assert_array_equal(first, few)
    assert not np.intersect1d(first, second).size
    assert not np.intersect1d(last, second).size


@pytest.mark.parametrize(
    ("memory", "rows"),
    [(1, 1), (6 * 160 * 68, 68), (6 * 160 * 69 - 1, 68), (1 << 30, (1 << 20) // 160)],
)
def test_every_release_is_told_in_chunks_that_fit(memory: int, rows: int) -> None:
    """Of 160 bytes each, with six working copies; on the processor in chunks of a mebibyte."""
    mechanism, played, heard = ClippedNoise(clip=1, sigma=1), hypotheses(1.0), []
    count = 2 * rows + 1
    scores = score_releases(
        mechanism,
        [played.batch(played.null)],
        known_ruler(mechanism.law(played.records), played),
        np.zeros(count, int),
        SEED,
        memory=memory,
        advance=heard.append,
    )
    assert heard == [rows, rows, 1]
    assert scores.shape == (2, count)


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


def deaf(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(gradients.shape[1], generator=generator)


@pytest.mark.parametrize(
    ("function", "cosine"), [(sums_under_loud_noise, 0.9999), (noise_that_no_seed_reaches, 0.99)]
)
def test_the_ruler_points_from_one_hypothesis_to_the_other(function: object, cosine: float) -> None:
    played = hypotheses(0.5, values=2)
    mechanism = FileMechanism(function, "f.py:m")  # type: ignore[arg-type]
    ruler = pilot_ruler(mechanism, played, 500, SEED, memory=1 << 20)
    expected = played.alternatives.mean(dim=0) - played.null
    assert torch.cosine_similarity(ruler.towards, expected, dim=0) > cosine
    assert ruler.laplace is None


@pytest.mark.slow
def test_the_centre_is_the_mean_release() -> None:
    played = hypotheses(0.5)
    ruler = pilot_ruler(
        FileMechanism(noise_that_no_seed_reaches, "f.py:m"), played, 900, SEED, memory=1
    )
    error = (ruler.centre - played.null).norm() / (0.05 * 40**0.5 / 30)
    assert 0.5 < error < 1.6


def test_a_release_that_does_not_move_is_ruled_by_the_gradients() -> None:
    played = hypotheses(0.5)
    ruler = pilot_ruler(FileMechanism(deaf, "f.py:m"), played, 100, SEED, memory=1 << 20)
    torch.testing.assert_close(ruler.towards, played.alternatives[0] - played.null)


def test_pilots_are_a_quarter_rounded_up() -> None:
    assert [pilot_releases(trials) for trials in (100, 5000, 5001)] == [25, 1250, 1251]
