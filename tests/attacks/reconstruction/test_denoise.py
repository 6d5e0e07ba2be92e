import pytest
import torch

from gradaudit.attacks.reconstruction.copa import _gradient, denoise


def objective(u: torch.Tensor, f: torch.Tensor, weight: float) -> float:
    variation = _gradient(u).square().sum(dim=0).sqrt().sum()
    return float(0.5 * (u - f).square().sum() + weight * variation)


def picture() -> torch.Tensor:
    return torch.rand(3, 8, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.slow
def test_two_pixels_come_closer_by_the_weight() -> None:
    f = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64)
    found = denoise(f, 0.15, iterations=1500, tolerance=0)
    torch.testing.assert_close(found, torch.tensor([[[0.15, 0.85]]]).double(), atol=1e-4, rtol=0)


def test_a_step_is_kept_and_a_constant_unchanged() -> None:
    f = torch.full((1, 6, 6), 0.3, dtype=torch.float64)
    torch.testing.assert_close(denoise(f, 0.15), f)


@pytest.mark.slow
def test_the_result_minimises_the_objective() -> None:
    f = picture()
    found = denoise(f, 0.15, iterations=1500, tolerance=0)
    least = objective(found, f, 0.15)
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        moved = found + 0.01 * torch.randn(f.shape, generator=generator, dtype=torch.float64)
        assert objective(moved, f, 0.15) > least
    assert least < objective(f.mean(dim=(1, 2), keepdim=True).expand_as(f), f, 0.15)


def test_channels_do_not_mix() -> None:
    f = picture()
    together = denoise(f, 0.15, iterations=50, tolerance=0)
    apart = torch.cat([denoise(f[n : n + 1], 0.15, iterations=50, tolerance=0) for n in range(3)])
    torch.testing.assert_close(together, apart)


@pytest.mark.parametrize("weight", [0.0, -1.0])
def test_without_weight_nothing_happens(weight: float) -> None:
    assert denoise(picture(), weight) is not None
    torch.testing.assert_close(denoise(picture(), weight), picture())
