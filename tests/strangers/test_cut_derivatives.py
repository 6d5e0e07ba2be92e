"""What a model computes without derivatives is measured by differences, never as zero.

Numbers are compared with plain torch: Jacobians of float64 gradients by central differences.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradaudit.audits.sensitivity.jacobian_sensitivity import DifferentiableTarget
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from gradaudit.progress import Silent
from gradaudit.zoo import build

_STEP = 1e-6


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


def _by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().tanh().numpy())


def _without_grad(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return function(x)

    return run


class Backbone(nn.Module):
    """A head on features, which some function takes out of the graph in part or whole."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.head, self.function = nn.Linear(6, 8), nn.Linear(8, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.body(x)))


class Frozen(nn.Module):
    """A pretrained convolutional backbone under ``no_grad`` whose features are pooled."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), pool, nn.Flatten())
        self.body.requires_grad_(False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.body(x.unflatten(1, (1, 6, 6)))
        return self.head(features)


def _measured(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[dict[str, float], str]:
    target = Target(model, CrossEntropy())
    records = Records(inputs, labels, ("a", "b", "c"))
    observed = DifferentiableTarget.of(target, layers_of(model), records, 0)
    found = observed.jacobian_sensitivity("point", 0, seed=0, memory=1 << 30, progress=Silent())
    return {name: norms["f"].mean for name, norms in found.raw.items()}, found.method


def _by_differences(model: nn.Module, inputs: Tensor, labels: Tensor, name: str) -> float:
    model = model.double()
    weight = model.get_parameter(name)

    def gradient(x: Tensor, label: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x[None]), label[None])
        return torch.autograd.grad(loss, weight)[0].flatten()

    def norm(x: Tensor, label: Tensor) -> Tensor:
        steps = _STEP * torch.eye(len(x), dtype=x.dtype)
        columns = [(gradient(x + s, label) - gradient(x - s, label)) / (2 * _STEP) for s in steps]
        return torch.stack(columns).norm()

    norms = list(map(norm, inputs.double(), labels))
    return float(torch.stack(norms).mean())


@pytest.mark.parametrize(
    "function",
    [
        _without_grad(torch.relu),
        _without_grad(torch.tanh),
        lambda x: x.tanh().detach(),
        lambda x: x.relu() * x.sigmoid().detach(),
        _by_numpy,
        Once.apply,
    ],
    ids=["relu", "tanh", "detach", "gate", "numpy", "once"],
)
def test_the_sensitivity_is_that_of_differences(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, inputs, labels = Backbone(function), torch.randn(4, 6), torch.arange(4) % 3
    found, _ = _measured(model, inputs, labels)
    expected = _by_differences(model, inputs, labels, "head.weight")
    assert expected > 0.1
    assert found["head"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d(2)]
)
def test_a_head_on_a_frozen_backbone_reacts_to_the_input(pool: nn.Module) -> None:
    torch.manual_seed(0)
    model, inputs, labels = Frozen(pool), torch.randn(3, 36), torch.arange(3)
    found, _ = _measured(model, inputs, labels)
    expected = _by_differences(model, inputs, labels, "head.weight")
    assert expected > 0.1
    assert found["head"] == pytest.approx(expected, rel=1e-3)


def test_the_method_names_the_cut() -> None:
    torch.manual_seed(0)
    model = Backbone(lambda x: x.tanh().detach())
    _, method = _measured(model, torch.randn(4, 6), torch.arange(4) % 3)
    assert method.startswith("central differences of gradients: ")
    assert "cuts the derivative by the input (detach or no_grad?)" in method


@pytest.mark.parametrize("make", [_without_grad(torch.relu), torch.relu, torch.abs])
@pytest.mark.parametrize("seed", range(5))
def test_kinks_are_no_cuts(make: Callable[[Tensor], Tensor], seed: int) -> None:
    """Also where records lie on them: zeros without a bias."""
    torch.manual_seed(seed)
    model = Backbone(make)
    nn.init.zeros_(model.body.bias)
    inputs = torch.randn(4, 6)
    inputs[:, 2:] = 0
    inputs[0] = 0
    assert "differences" not in _measured(model, inputs, torch.arange(4) % 3)[1]


@pytest.mark.parametrize("seed", range(3))
def test_ties_of_max_pooling_are_no_cuts(seed: int) -> None:
    torch.manual_seed(seed)
    model = build("cnn3", shape=(1, 8, 8), classes=3, activation="relu")
    inputs = torch.zeros(3, 1, 8, 8)
    inputs[:, :, 3:5, 3:5] = torch.rand(3, 1, 2, 2)
    assert "differences" not in _measured(model, inputs, torch.arange(3))[1]
