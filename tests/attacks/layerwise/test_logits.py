import math

import numpy as np
import pytest
import torch
from attacks.layerwise.nets import functional, gradient, net, record
from torch import Tensor, nn

from gradaudit.attacks.layerwise.layer_chain import (
    invert_linear,
    roots,
    with_bias,
    without_bias,
)
from gradaudit.errors import NotApplicable


def logistic(t: np.ndarray) -> np.ndarray:
    """μ σ(−μ): minus R-GAP's μ J′(μ), with its largest value 0.2785 at μ = 1.2785."""
    return t / (1 + np.exp(np.clip(t, -700, 700)))


LARGEST = 1.2784645427610738


def test_both_roots_of_r_gaps_equation_are_found() -> None:
    low, high = roots(logistic, 0.2)
    assert low < LARGEST < high
    assert logistic(np.array([low, high])) == pytest.approx([0.2, 0.2], rel=1e-12)


def test_two_roots_that_lie_close_together_are_found() -> None:
    right = float(logistic(np.array([LARGEST]))[0]) * (1 - 1e-10)
    low, high = roots(logistic, right)
    assert 0 < high - low < 1e-4
    assert low < LARGEST < high


def test_negative_roots_are_found() -> None:
    (found,) = roots(logistic, -2.0)
    assert found < 0
    assert found / (1 + math.exp(found)) == pytest.approx(-2)


def test_no_root_where_there_is_none() -> None:
    assert roots(logistic, 0.3) == []


def ends(classes: int, seed: int) -> tuple[nn.Sequential, Tensor, Tensor, Tensor]:
    model = net(nn.Linear(5, classes, bias=False), seed=seed)
    x, label = 3 * record(5, seed=seed), torch.tensor([1])
    copy = functional(model)
    return model, x, label, gradient(copy, x, label)["0.weight"]


@pytest.mark.parametrize("seed", range(8))
def test_the_true_input_is_among_the_roots(seed: int) -> None:
    model, x, label, shared = ends(4, seed)

    def output_gradient(z: Tensor) -> Tensor:
        return z.softmax(dim=1) - torch.nn.functional.one_hot(label, 4)

    found = without_bias(shared, model[0].weight.detach(), output_gradient)
    closest = min(found, key=lambda end: float((end.x - x[0]).norm()))
    torch.testing.assert_close(closest.x, x[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.outer(closest.delta, closest.x), shared)


def test_a_bias_tells_the_input_at_once() -> None:
    model = net(nn.Linear(5, 3))
    x = record(5)
    update = gradient(functional(model), x, torch.tensor([2]))
    end = with_bias(update["0.weight"], update["0.bias"])
    torch.testing.assert_close(end.x, x[0], rtol=1e-12, atol=1e-12)


def test_a_gradient_of_two_records_is_told_from_one() -> None:
    model = net(nn.Linear(5, 3, bias=False))
    shared = gradient(
        functional(model), torch.cat([record(5), record(5, seed=9)]), torch.tensor([0, 1])
    )
    with pytest.raises(NotApplicable, match="rank one"):
        without_bias(shared["0.weight"], model[0].weight.detach(), lambda z: z)


def test_a_gradient_of_zero_tells_nothing() -> None:
    nothing = torch.zeros(3, 5, dtype=torch.float64)
    with pytest.raises(NotApplicable, match="zero"):
        without_bias(nothing, nothing, lambda z: z)
    with pytest.raises(NotApplicable, match="zero"):
        invert_linear(nothing, nothing[:, 0])


def test_least_squares_over_all_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    delta = torch.randn(4, generator=generator, dtype=torch.float64)
    blocks = torch.cat([d * torch.eye(6, dtype=torch.float64) for d in delta])
    expected = torch.linalg.lstsq(blocks, weight.flatten()).solution
    torch.testing.assert_close(invert_linear(weight, delta), expected)
