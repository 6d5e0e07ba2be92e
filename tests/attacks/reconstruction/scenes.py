"""Small models and updates that the tests of reconstruction attack."""

from collections.abc import Callable

import torch
from subjects import seeded
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.attacks.reconstruction.observing import AttackedBatch, ThreatModel
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy, Loss
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol


def drawn(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A model in float64 whose weights are drawn under a seed."""
    with seeded(seed):
        return build().double().eval()


def mlp(inputs: int = 6, classes: int = 4, *, bias: bool = True) -> nn.Module:
    """One hidden layer of sigmoids with weights of size one, which gradients show well."""

    def build() -> nn.Module:
        model = nn.Sequential(
            nn.Linear(inputs, 16, bias), nn.Sigmoid(), nn.Linear(16, classes, bias)
        )
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -1, 1)
        return model

    return drawn(build)


def cnn(classes: int = 3, channels: int = 1) -> nn.Module:
    """A convolution and a classifier for pictures of 6×6."""

    def build() -> nn.Module:
        model = nn.Sequential(
            nn.Conv2d(channels, 6, 3, stride=2, padding=1),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(54, classes),
        )
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
        return model

    return drawn(build)


def certain_of_zero() -> nn.Module:
    """A model whose update shows nothing of a record labelled 0: the gradient is exactly zero."""
    model = nn.Sequential(nn.Linear(6, 4)).double()
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([1e3, 0, 0, 0]))
    return model


def records(*shape: int, labels: list[int], seed: int = 0) -> Records:
    """Records with inputs in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(len(labels), *shape, generator=generator, dtype=torch.float64)
    return Records(inputs=inputs, labels=torch.tensor(labels))


def observed(
    model: nn.Module,
    batch: Records,
    *,
    loss: Loss | None = None,
    sharing: SharingProtocol | None = None,
    known_labels: bool = False,
) -> AttackedBatch:
    """What an attacker sees of a batch when all layers are shared."""
    target = Target(model, loss or CrossEntropy())
    threat = ThreatModel(target, sharing or SharingProtocol(), target.layers, known_labels)
    return threat.observed(batch, torch.Generator().manual_seed(0))


def view(model: nn.Module, batch: Records, **options: object) -> AttackerView:
    """The attacker's view alone."""
    return observed(model, batch, **options).view  # type: ignore[arg-type]


def finite_differences(
    function: Callable[[Tensor], Tensor], point: Tensor, step: float = 1e-6
) -> Tensor:
    """The gradient by central differences, one coordinate at a time."""
    moves = step * torch.eye(len(point), dtype=point.dtype)
    return torch.stack([(function(point + m) - function(point - m)) / (2 * step) for m in moves])
