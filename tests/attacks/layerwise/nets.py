"""Small chains in float64 and what an attacker sees of one record's gradient."""

import torch
from torch import Tensor, nn

from gradaudit.attacks.layerwise.chain_recording import chain_of
from gradaudit.attacks.layerwise.layer_chain import LayerChain
from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import BinaryCrossEntropy, CrossEntropy, Loss
from gradaudit.models.target import Target

ACTIVATIONS = {
    "tanh": nn.Tanh(),
    "leaky-relu": nn.LeakyReLU(0.2),
    "sigmoid": nn.Sigmoid(),
    "elu": nn.ELU(0.7),
    "softplus": nn.Softplus(2.0),
}


def net(*layers: nn.Module, seed: int = 0) -> nn.Sequential:
    """Layers in a row, with biases and weights drawn under a seed."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(*layers).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            bound = 1 / parameter[0].numel() ** 0.5
            parameter.uniform_(-bound, bound, generator=generator)
    return model


def widening(activation: nn.Module, *, classes: int = 4, bias: bool = True) -> nn.Sequential:
    """Two convolutions whose systems have full rank, for pictures of 1×8×8."""
    return net(
        nn.Conv2d(1, 4, 3),
        activation,
        nn.Conv2d(4, 6, 3),
        activation,
        nn.Flatten(),
        nn.Linear(96, classes, bias),
    )


def narrowing(activation: nn.Module) -> nn.Sequential:
    """A convolution of full column rank and one that loses most of what it gives."""
    return net(
        nn.Conv2d(1, 4, 3), activation, nn.Conv2d(4, 1, 3, stride=2), nn.Flatten(), nn.Linear(4, 3)
    )


def functional(model: nn.Module, loss: Loss | None = None) -> FunctionalModel:
    """The model with cross-entropy by default."""
    return FunctionalModel.of(Target(model, loss or CrossEntropy()))


def chain(model: nn.Module, *shape: int) -> LayerChain:
    """The model as a chain."""
    return chain_of(functional(model), shape, "R-GAP")


def record(*shape: int, seed: int = 1) -> Tensor:
    """(1, …) in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(1, *shape, generator=generator, dtype=torch.float64)


def gradient(model: FunctionalModel, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Of the mean loss, by parameter."""

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return model.losses(parameters, inputs, labels).mean()

    found: dict[str, Tensor] = torch.func.grad(loss)(model.parameters)
    return found


def view(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor | None = None,
    *,
    loss: Loss | None = None,
    known: bool = False,
) -> AttackerView:
    """The gradient of a batch, of classes where the labels are integers."""
    copy = functional(model, loss)
    labels = torch.ones(len(inputs), dtype=torch.int64) if labels is None else labels
    outputs = copy.outputs({}, inputs)
    classes = 0 if labels.is_floating_point() else outputs.shape[1]
    assert classes != 1 or isinstance(copy.loss, BinaryCrossEntropy)
    return AttackerView(
        model=copy,
        update=gradient(copy, inputs, labels),
        batch=len(inputs),
        shape=tuple(inputs.shape[1:]),
        classes=classes,
        labels=labels if known else None,
        bounds=(0.0, 1.0),
    )
