"""Layers whose weights are zero when training begins, as in ControlNet and in adapters."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradaudit.audits.sensitivity.jacobian_sensitivity import DifferentiableTarget
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from gradaudit.progress import Silent
from tests.gradients.dense import jacobians


def zeroed(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def stack(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


class ZeroedBranch(nn.Module):
    """A residual block whose branch gives nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = nn.Conv2d(3, 4, 3), zeroed(nn.Conv2d(4, 4, 1))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x).relu()
        outputs: Tensor = self.head((hidden + self.branch(hidden)).flatten(1))
        return outputs


MODELS: dict[str, Callable[[], nn.Module]] = {
    "before a normalisation": lambda: stack(
        nn.Conv2d(3, 4, 3), nn.ReLU(), zeroed(nn.Conv2d(4, 4, 1)), nn.BatchNorm2d(4)
    ),
    "first": lambda: stack(zeroed(nn.Conv2d(3, 4, 3)), nn.ReLU(), nn.Conv2d(4, 4, 1)),
    "last": lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 4), zeroed(nn.Linear(4, 3))),
    "every": lambda: zeroed(stack(nn.Conv2d(3, 4, 3), nn.ReLU())),
    "branch": ZeroedBranch,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_sensitivity_is_that_of_dense_jacobians(name: str) -> None:
    torch.manual_seed(0)
    target = Target(MODELS[name]().eval(), CrossEntropy())
    records = Records(torch.rand(2, 3, 4, 4), torch.tensor([0, 2]), classes=("a", "b", "c"))
    layers = layers_of(target.model)
    observed = DifferentiableTarget.of(target, layers, records, 0)
    measured = observed.jacobian_sensitivity("point", 0, seed=0, memory=1 << 28, progress=Silent())
    for layer in layers:
        names = layer.parameter_names
        dense = [
            jacobians(target, x, y, names)[1].norm().item()
            for x, y in zip(records.inputs, records.labels, strict=True)
        ]
        norms = measured.raw[layer.name]["f"].values
        assert norms.tolist() == pytest.approx(dense, rel=1e-6, abs=1e-9)
