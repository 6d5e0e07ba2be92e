import math

import pytest
import torch
from torch import Tensor

from gradaudit.attacks.layerwise.fully_connected import (
    inversion_bound,
    least_squares_bound,
    under_noise,
)
from gradaudit.attacks.layerwise.layer_chain import invert_linear


def noisy(noise: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, W = b xᵀ, b, E_W, E_B."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, b = normal(5), normal(4)
    return x, torch.outer(b, x), b, noise * normal(4, 5), noise * normal(4)


def test_conditions_against_dense_matrices() -> None:
    x, weight, bias, e_w, e_b = noisy(1e-3)
    b = torch.diag(bias.repeat_interleave(len(x)))
    e = torch.diag(e_b.repeat_interleave(len(x)))
    found = inversion_bound(weight, bias, e_w, e_b)
    r = float(torch.linalg.matrix_norm(torch.linalg.inv(b) @ e, ord=2))
    kappa = float(torch.linalg.cond(b))
    relative = torch.linalg.matrix_norm(e, ord=2) / torch.linalg.matrix_norm(b, ord=2)
    relative = float(relative + e_w.norm() / weight.norm())
    assert found.kappa == pytest.approx(kappa)
    assert found.r == pytest.approx(r)
    assert found.bound == pytest.approx(kappa / (1 - r) * relative)
    assert found.ratio == pytest.approx(float(b.norm() / e.norm()))


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 0.1, 0.3])
def test_no_bound_is_exceeded_where_it_holds(noise: float) -> None:
    counted = 0
    for seed in range(60):
        x, weight, bias, e_w, e_b = noisy(noise, seed)
        seen_w, seen_b = weight + e_w, bias + e_b
        best = int(seen_b.abs().argmax())
        squares = float((invert_linear(seen_w, seen_b) - x).norm() / x.norm())
        row = float((seen_w[best] / seen_b[best] - x).norm() / x.norm())
        every, one = (
            inversion_bound(weight, bias, e_w, e_b),
            inversion_bound(weight, bias, e_w, e_b, [best]),
        )
        counted += math.isfinite(every.bound) + math.isfinite(one.bound)
        assert squares <= every.bound * (1 + 1e-9)
        assert row <= one.bound * (1 + 1e-9)
        assert squares <= least_squares_bound(weight, bias, e_w, e_b) * (1 + 1e-9)
    assert counted > 40


def test_one_row_has_condition_number_one() -> None:
    _, weight, bias, e_w, e_b = noisy(1e-2)
    found = inversion_bound(weight, bias, e_w, e_b, [2])
    assert (found.rows, found.kappa) == (1, 1.0)
    assert found.r == pytest.approx(float((e_b[2] / bias[2]).abs()))


def test_the_bound_is_void_where_a_row_drowns_but_the_attack_is_not() -> None:
    x, weight, bias, e_w, e_b = noisy(1e-3)
    bias[1], weight[1], e_b[1] = 1e-5, 1e-5 * x, 1e-3
    found = inversion_bound(weight, bias, e_w, e_b)
    assert found.r > 1
    assert math.isinf(found.bound)
    assert found.described()["bound"] is None
    assert found.described()["bound_holds"] is False
    error = (invert_linear(weight + e_w, bias + e_b) - x).norm() / x.norm()
    assert float(error) < 0.01


@pytest.mark.parametrize(
    ("ratio", "region"), [(10.0, "red"), (9.99, "white"), (1.0, "white"), (0.99, "green")]
)
def test_regions(ratio: float, region: str) -> None:
    ones = torch.ones(4, dtype=torch.float64)
    found = inversion_bound(torch.ones(4, 2), ones, torch.zeros(4, 2), ones / ratio)
    assert found.region == region


def test_a_layer_without_noise() -> None:
    _, weight, bias, _, _ = noisy(1.0)
    found = inversion_bound(weight, bias, 0 * weight, 0 * bias)
    assert (found.r, found.bound, found.region) == (0.0, 0.0, "red")
    assert found.described()["ratio"] is None


def test_conditions_of_a_defended_update() -> None:
    _, weight, bias, e_w, e_b = noisy(1e-2)
    clean = {"fc.weight": weight, "fc.bias": bias}
    observed = {"fc.weight": weight + e_w, "fc.bias": bias + e_b}
    found = under_noise(clean, observed, "fc")
    best = int(observed["fc.bias"].abs().argmax())
    every, one = found["all_rows"], found["best_row"]
    assert isinstance(every, dict)
    assert isinstance(one, dict)
    assert every["r"] == pytest.approx(inversion_bound(weight, bias, e_w, e_b).r)
    assert one["bound"] == pytest.approx(inversion_bound(weight, bias, e_w, e_b, [best]).bound)
    assert found["least_squares_bound"] == pytest.approx(
        least_squares_bound(weight, bias, e_w, e_b)
    )
