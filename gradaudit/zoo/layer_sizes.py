"""Builds sequential models whose layers are fitted to the sizes of their inputs."""

from collections import Counter
from math import prod
from typing import Literal, Self

import torch
from torch import nn

from gradaudit.errors import UsageError

Shape = tuple[int, int, int]
"""Channels, height and width of one record."""
Padding = Literal["same", "valid"]
"""Padding of a convolution: ``same``: half the kernel on each side; ``valid``: none."""
Activation = Literal[
    "relu", "leaky-relu", "elu", "gelu", "silu", "softplus", "tanh", "sigmoid", "none"
]
_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "none": nn.Identity,
}


class SequentialBuilder:
    """Builds an ``nn.Sequential`` with layers named conv1, pool1, …, fc1, …, output.

    Args:
        shape: shape of one record, channels first.
        activation: follows every layer but the output.

    Raises:
        UsageError: a size is not positive, the activation is unknown, or the input is too small
            for the layers (from the methods that add them).
    """

    def __init__(self, shape: tuple[int, ...], activation: Activation) -> None:
        _check_sizes(shape)
        self.input_shape = self.shape = shape
        self.activation = activation
        self.model = nn.Sequential()
        self.counts: Counter[str] = Counter()

    def conv(
        self,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int | Padding = 0,
        bias: bool = True,
        norm_groups: int | None = None,
        name: str = "",
    ) -> Self:
        """Adds a convolution, a group norm if ``norm_groups`` is given, and the activation.

        It is 1-D or 2-D as the shape has it. A ``padding`` in numbers is elements a side.
        """
        number = name or self._next("conv")
        before, *sizes = self.shape
        margin = _margin(padding, kernel)
        after = [(size + 2 * margin - kernel) // stride + 1 for size in sizes]
        self._fits(after, f"conv{number} of width {kernel}")
        kind = nn.Conv1d if len(sizes) == 1 else nn.Conv2d
        layer = kind(before, channels, kernel, stride=stride, padding=margin, bias=bias)
        self.model.add_module(f"conv{number}", layer)
        if norm_groups is not None:
            if norm_groups < 1 or channels % norm_groups:
                raise UsageError(f"groups={norm_groups} does not divide {channels} channels")
            self.model.add_module(f"norm{number}", nn.GroupNorm(norm_groups, channels))
        self.shape = (channels, *after)
        return self._activate(f"conv{number}", self.activation)

    def pool(self) -> Self:
        """Adds a max-pool of width 2; elements that do not fill a window are dropped."""
        channels, *sizes = self.shape
        number = self._next("pool")
        after = [length // 2 for length in sizes]
        self._fits(after, f"pool{number} of width 2")
        kind = nn.MaxPool1d if len(sizes) == 1 else nn.MaxPool2d
        self.model.add_module(f"pool{number}", kind(2))
        self.shape = (channels, *after)
        return self

    def dense(self, units: int) -> Self:
        """Adds a fully connected layer and the activation."""
        _check_sizes((units,))
        name = f"fc{self._next('fc')}"
        self._linear(name, units)
        return self._activate(name, self.activation)

    def output(self, classes: int, activation: Activation = "none") -> nn.Sequential:
        """Adds the fully connected output layer and returns the finished model."""
        _check_sizes((classes,))
        self._linear("output", classes)
        if activation != "none":
            self._activate("output", activation)
        return self.model

    def _linear(self, name: str, units: int) -> None:
        if not hasattr(self.model, "flatten"):
            self.model.add_module("flatten", nn.Flatten())
        self.model.add_module(name, nn.Linear(prod(self.shape), units))
        self.shape = (units,)

    def _activate(self, layer: str, activation: Activation) -> Self:
        if activation not in _ACTIVATIONS:
            raise UsageError(f"activation={activation!r} is not one of {', '.join(_ACTIVATIONS)}")
        self.model.add_module(f"{layer}_{activation}", _ACTIVATIONS[activation]())
        return self

    def _next(self, kind: str) -> str:
        self.counts[kind] += 1
        return str(self.counts[kind])

    def _fits(self, after: list[int], layer: str) -> None:
        if min(after) < 1:
            raise UsageError(
                f"shape={show(self.input_shape)} is too small: {layer} meets "
                f"{show(self.shape)}; give a larger shape"
            )


def show(shape: tuple[int, ...]) -> str:
    """Formats a shape: ``3x32x32``."""
    return "x".join(str(size) for size in shape)


def _margin(padding: int | Padding, kernel: int) -> int:
    if isinstance(padding, int):
        return padding
    return kernel // 2 if padding == "same" else 0


def _check_sizes(sizes: tuple[int, ...]) -> None:
    if not sizes or min(sizes) < 1:
        raise UsageError(f"{show(sizes)!r}: sizes and counts must be positive")


def initialise(model: nn.Sequential, init: str) -> nn.Sequential:
    """Redraw every parameter in place as ``init`` says, from torch's global generator.

    Args:
        model: any model.
        init: ``default`` leaves it; ``uniform:B`` draws weights and biases from uniform(−B, B).

    Raises:
        UsageError: ``init`` is neither.
    """
    if init == "default":
        return model
    law, _, number = init.partition(":")
    try:
        bound = float(number)
    except ValueError:
        bound = 0.0
    if law != "uniform" or not 0 < bound < float("inf"):
        raise UsageError(f"init={init!r}: write default, or uniform:B with a positive bound B")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-bound, bound)
    return model
