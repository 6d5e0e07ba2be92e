import pytest
import torch
import torch.nn.functional as F
from attacks.layerwise.nets import chain, functional, net, record
from torch import Tensor, nn

from gradaudit.attacks.layerwise.layer_chain import composed, leaky_relu, sigmoid, tanh
from gradaudit.errors import NotApplicable

CHAINS = {
    "fully connected": (net(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)), (5,)),
    "flattened": (net(nn.Flatten(), nn.Linear(12, 3)), (3, 2, 2)),
    "convolutions": (
        net(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.LeakyReLU(0.3),
            nn.Conv2d(4, 6, 2, groups=2, dilation=2, bias=False),
            nn.ELU(),
            nn.Sigmoid(),
            nn.Dropout(),
            nn.Flatten(),
            nn.Linear(24, 3),
            nn.Tanh(),
        ),
        (3, 7, 7),
    ),
    "same": (net(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(32, 2)), (1, 4, 4)),
    "1-D": (net(nn.Conv1d(2, 3, 3), nn.Softplus(), nn.Flatten(), nn.Linear(12, 2)), (2, 6)),
    "3-D": (net(nn.Conv3d(1, 3, 2), nn.Flatten(), nn.Linear(24, 2)), (1, 3, 3, 3)),
    "entrance": (net(nn.Sigmoid(), nn.Linear(4, 3)), (4,)),
}


class Functions(nn.Module):
    """Activations as functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 2, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.leaky_relu(torch.tanh(self.first(x)), 0.5)
        return self.last(hidden.reshape(len(x), -1)).sigmoid()


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)) + x)


class Weighted(nn.Module):
    """A weight that is computed from another."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.ones(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.raw.exp())


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_gives_the_outputs_of_the_model(name: str) -> None:
    model, shape = CHAINS[name]
    x = record(*shape)
    expected = functional(model).outputs({}, x).flatten()
    torch.testing.assert_close(chain(model, *shape).outputs(x[0]), expected)


def test_activations_are_found_wherever_they_are_written() -> None:
    model = Functions().double()
    found = chain(model, 1, 4, 4)
    assert found.stages[0].activation == composed((tanh(), leaky_relu(0.5)))
    assert found.stages[1].activation == sigmoid()
    assert [stage.layer for stage in found.stages] == ["first", "last"]
    assert found.stages[1].bias_name == "last.bias"
    x = record(1, 4, 4)
    torch.testing.assert_close(found.outputs(x[0]), model(x).flatten())


def convolutional(*layers: nn.Module, inputs: int) -> nn.Sequential:
    return net(nn.Conv2d(2, 4, 3), *layers, nn.Flatten(), nn.Linear(inputs, 2))


@pytest.mark.parametrize(
    ("model", "shape", "word"),
    [
        (convolutional(nn.MaxPool2d(2), inputs=16), (2, 6, 6), "pooling"),
        (convolutional(nn.AvgPool2d(2), inputs=16), (2, 6, 6), "pooling"),
        (convolutional(nn.AdaptiveAvgPool2d(1), inputs=4), (2, 6, 6), "pooling"),
        (convolutional(nn.BatchNorm2d(4), inputs=64), (2, 6, 6), "normalisation"),
        (convolutional(nn.ReLU(), inputs=64), (2, 6, 6), "ReLU"),
        (convolutional(nn.GELU(), inputs=64), (2, 6, 6), "GELU"),
        (convolutional(nn.LeakyReLU(0.0), inputs=64), (2, 6, 6), "flat"),
        (convolutional(nn.Softmax(1), inputs=64), (2, 6, 6), "softmax"),
        (Skip().double(), (4,), "skip connection"),
        (
            net(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), nn.Flatten(),
                nn.Linear(16, 2)),
            (1, 4, 4),
            "padding",
        ),
        (Weighted().double(), (4,), "computed from other"),
        (net(nn.Conv2d(1, 1, 3), nn.Flatten()), (1, 4, 4), "end with a fully connected"),
        (net(nn.ConvTranspose2d(1, 1, 3), nn.Flatten(), nn.Linear(36, 2)), (1, 4, 4), "transposed"),
        (net(nn.Linear(3, 3), nn.Flatten(), nn.Linear(6, 2)), (2, 3), "several positions"),
        (
            net(nn.Linear(4, 4), nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 1), nn.Flatten(),
                nn.Linear(4, 2)),
            (4,),
            "before a convolution",
        ),
    ],
)  # fmt: skip
def test_what_is_no_chain_is_named(model: nn.Module, shape: tuple[int, ...], word: str) -> None:
    with pytest.raises(NotApplicable, match=word):
        chain(model, *shape)


def test_a_shared_weight_is_refused() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(NotApplicable, match="share a weight"):
        chain(net(layer, nn.Tanh(), layer), 4)


def test_a_frozen_weight_is_refused() -> None:
    model = net(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    with pytest.raises(NotApplicable, match="frozen"):
        chain(model, 4)
