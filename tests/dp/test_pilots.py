import numpy as np
import pytest
import torch
from dp_subject import clip, hypotheses

from gradaudit.dp.hypotheses import pilot_releases, pilot_ruler
from gradaudit.dp.mechanisms import FileMechanism
from gradaudit.dp.releases import CommonNoise

SEED = np.random.SeedSequence(11)


def sums(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Noise far above the gradients."""
    return clip(gradients, 5).sum(0) + 50 * torch.randn(gradients.shape[1], generator=generator)


def entropy(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Noise that no seed reaches."""
    fresh = np.random.default_rng().normal(size=gradients.shape[1])
    return clip(gradients, 1).sum(0) + 0.05 * torch.from_numpy(fresh).float()


def deaf(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(gradients.shape[1], generator=generator)


def test_common_noise_cancels() -> None:
    played = hypotheses(0.5, companions=3, values=2)
    common = CommonNoise(FileMechanism(sums, "f.py:m"), SEED)
    assert common.repeats(played.batch(played.null))
    variants = torch.cat([played.null[None], played.alternatives])
    released = common(variants, played.companions)
    expected = played.alternatives - played.null
    torch.testing.assert_close(released[1:] - released[0], expected, rtol=0, atol=2e-5)
    assert torch.equal(common(played.null, played.companions), released[0])


def test_noise_without_a_seed_does_not_cancel() -> None:
    played = hypotheses(0.5)
    assert not CommonNoise(FileMechanism(entropy, "f.py:m"), SEED).repeats(
        played.batch(played.null)
    )


@pytest.mark.parametrize(("function", "cosine"), [(sums, 0.9999), (entropy, 0.99)])
def test_the_ruler_points_from_one_hypothesis_to_the_other(function: object, cosine: float) -> None:
    played = hypotheses(0.5, values=2)
    mechanism = FileMechanism(function, "f.py:m")  # type: ignore[arg-type]
    ruler = pilot_ruler(mechanism, played, 500, SEED, memory=1 << 20)
    expected = played.alternatives.mean(dim=0) - played.null
    assert torch.cosine_similarity(ruler.towards, expected, dim=0) > cosine
    assert ruler.laplace is None


def test_the_centre_is_the_mean_release() -> None:
    played = hypotheses(0.5)
    ruler = pilot_ruler(FileMechanism(entropy, "f.py:m"), played, 900, SEED, memory=1)
    error = (ruler.centre - played.null).norm() / (0.05 * 40**0.5 / 30)
    assert 0.5 < error < 1.6


def test_a_release_that_does_not_move_is_ruled_by_the_gradients() -> None:
    played = hypotheses(0.5)
    ruler = pilot_ruler(FileMechanism(deaf, "f.py:m"), played, 100, SEED, memory=1 << 20)
    torch.testing.assert_close(ruler.towards, played.alternatives[0] - played.null)


def test_pilots_are_a_quarter_rounded_up() -> None:
    assert [pilot_releases(trials) for trials in (100, 5000, 5001)] == [25, 1250, 1251]
