import math

import pytest
import torch

from gradaudit.attacks.layerwise.layer_chain import (
    Activation,
    composed,
    elu,
    leaky_relu,
    sigmoid,
    softplus,
    tanh,
)
from gradaudit.attacks.layerwise.recursion import share_outside

EVERY = [
    tanh(),
    sigmoid(),
    leaky_relu(0.1),
    elu(0.5),
    softplus(2.0),
    composed((sigmoid(), tanh())),
    composed(()),
]
POINTS = torch.linspace(-3, 3, 60, dtype=torch.float64)


@pytest.mark.parametrize("activation", EVERY, ids=str)
def test_inverse_undoes_the_activation(activation: Activation) -> None:
    torch.testing.assert_close(
        activation.inverse(activation.value(POINTS)), POINTS, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("activation", EVERY, ids=str)
def test_slope_is_the_derivative(activation: Activation) -> None:
    step = 1e-6
    difference = (activation.value(POINTS + step) - activation.value(POINTS - step)) / (2 * step)
    torch.testing.assert_close(activation.slope(POINTS), difference, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("activation", EVERY, ids=str)
def test_values_lie_in_the_range(activation: Activation) -> None:
    assert share_outside(activation, activation.value(POINTS)) == 0


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (tanh(), (-1, 1)),
        (sigmoid(), (0, 1)),
        (leaky_relu(0.1), (-math.inf, math.inf)),
        (elu(0.5), (-0.5, math.inf)),
        (softplus(2.0), (0, math.inf)),
        (composed((sigmoid(), tanh())), (0, math.tanh(1))),
    ],
    ids=str,
)
def test_ranges(activation: Activation, expected: tuple[float, float]) -> None:
    assert activation.range == pytest.approx(expected)


def test_what_lies_outside_of_the_range_is_moved_inside() -> None:
    found = tanh().inverse(torch.tensor([-2.0, 1.0, 5.0], dtype=torch.float64))
    assert bool(found.isfinite().all())
    assert float(tanh().inverse(torch.tensor([9.0]).double(), margin=0.01)) == pytest.approx(
        math.atanh(0.99)
    )


def test_a_single_activation_is_not_wrapped() -> None:
    alone = tanh()
    assert composed([alone]) is alone
