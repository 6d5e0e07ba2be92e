"""A network as a chain of linear layers with elementwise activations between them.

Chen & Campbell 2021, section 2: Z⁽ⁱ⁾ = W⁽ⁱ⁾ X⁽ⁱ⁾ + B⁽ⁱ⁾ and X⁽ⁱ⁺¹⁾ = A⁽ⁱ⁾(Z⁽ⁱ⁾). All maps are of
one record, its values flattened in the order in which the tensors hold them.

Activations can be inverted: eq. 2 needs the inverse and eq. 3 the derivative. What is given to an
inverse is a solution of a linear system and may lie outside of the activation's range: it is then
moved ``MARGIN`` inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod

import torch
import torch.nn.functional as F
from torch import Tensor

from gradaudit.ranks.geometry import Convolution

Elementwise = Callable[[Tensor], Tensor]
MARGIN = 1e-12
"""Least distance from the ends of a range at which an inverse is taken."""


@dataclass(frozen=True)
class Activation:
    """A strictly increasing, piecewise differentiable function of each element.

    Attributes:
        name: with its parameters, which distinguish it from others.
        value: a(z).
        slope: a′(z).
        undone: the z with a(z) = a, of values inside the range.
        range: the open interval of its values.
    """

    name: str
    value: Elementwise = field(compare=False)
    slope: Elementwise = field(compare=False)
    undone: Elementwise = field(compare=False)
    range: tuple[float, float] = (-inf, inf)

    def inverse(self, a: Tensor, margin: float = MARGIN) -> Tensor:
        """The z with a(z) = a, of values moved so far into the range."""
        low, high = self.range
        return self.undone(a.clamp(low + margin, high - margin))

    def __str__(self) -> str:
        return self.name


def tanh() -> Activation:
    """The hyperbolic tangent."""
    return Activation("tanh", torch.tanh, lambda z: 1 / z.cosh().square(), torch.atanh, (-1.0, 1.0))


def sigmoid() -> Activation:
    """1 / (1 + e⁻ᶻ)."""
    return Activation(
        "sigmoid", torch.sigmoid, lambda z: z.sigmoid() * (-z).sigmoid(), torch.logit, (0.0, 1.0)
    )


def leaky_relu(negative: float) -> Activation:
    """The leaky rectifier: the identity, times ``negative`` > 0 where z is negative."""
    return Activation(
        f"leaky_relu({negative:g})",
        lambda z: F.leaky_relu(z, negative),
        lambda z: torch.where(z > 0, torch.ones_like(z), negative),
        lambda a: torch.where(a > 0, a, a / negative),
    )


def elu(alpha: float) -> Activation:
    """The identity, and ``alpha`` (eᶻ − 1) where z is negative."""
    return Activation(
        f"elu({alpha:g})",
        lambda z: F.elu(z, alpha),
        lambda z: torch.where(z > 0, torch.ones_like(z), alpha * z.clamp_max(0).exp()),
        lambda a: torch.where(a > 0, a, (a.clamp_max(0) / alpha).log1p()),
        (-alpha, inf),
    )


def softplus(beta: float) -> Activation:
    """log(1 + e^(beta z)) / beta."""
    return Activation(
        f"softplus({beta:g})",
        lambda z: F.softplus(z, beta, threshold=40),
        lambda z: (beta * z).sigmoid(),
        lambda a: (beta * a + (-(-beta * a).expm1()).log()) / beta,
        (0.0, inf),
    )


def composed(parts: Sequence[Activation]) -> Activation:
    """Several activations in a row, the first applied first; the identity where there are none."""
    if len(parts) == 1:
        return parts[0]

    def value(z: Tensor) -> Tensor:
        for part in parts:
            z = part.value(z)
        return z

    def slope(z: Tensor) -> Tensor:
        slope = torch.ones_like(z)
        for part in parts:
            slope, z = slope * part.slope(z), part.value(z)
        return slope

    def undone(a: Tensor) -> Tensor:
        for part in reversed(parts):
            a = part.inverse(a)
        return a

    low, high = -inf, inf
    for part in parts:
        low, high = part.value(torch.tensor([low, high], dtype=torch.float64)).tolist()
    return Activation(", ".join(part.name for part in parts), value, slope, undone, (low, high))


@dataclass(frozen=True)
class Stage:
    """One linear layer and the activation behind it.

    Attributes:
        layer: name of the layer, as in ``named_modules``.
        input_shape: of X for one record; (inputs,) of a fully connected layer.
        output_shape: of Z for one record.
        convolution: geometry of a convolution (its own weights mean nothing), None for a fully
            connected layer.
    """

    layer: str
    weight: Tensor
    bias: Tensor | None
    weight_name: str
    bias_name: str | None
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    activation: Activation
    convolution: Convolution | None = None

    @property
    def inputs(self) -> int:
        """Elements of X."""
        return prod(self.input_shape)

    @property
    def outputs(self) -> int:
        """Elements of Z."""
        return prod(self.output_shape)

    @cached_property
    def offset(self) -> Tensor:
        """The bias at every element of Z, (outputs,)."""
        if self.bias is None:
            return self.weight.new_zeros(self.outputs)
        return self.bias.repeat_interleave(self.outputs // len(self.bias))

    def linear(self, x: Tensor) -> Tensor:
        """W x, (outputs,), of x (inputs,)."""
        if self.convolution is None:
            return self.weight @ x
        return self._convolve(x.reshape(1, *self.input_shape)).flatten()

    def transposed(self, z: Tensor) -> Tensor:
        """Wᵀ z, (inputs,), of z (outputs,)."""
        if self.convolution is None:
            return self.weight.T @ z
        zero = self.weight.new_zeros(1, *self.input_shape)
        pull = torch.func.vjp(self._convolve, zero)[1]
        gradient: Tensor = pull(z.reshape(1, *self.output_shape))[0]
        return gradient.flatten()

    def _convolve(self, x: Tensor) -> Tensor:
        assert self.convolution is not None
        output: Tensor = self.convolution._conv_forward(x, self.weight, None)
        return output


@dataclass(frozen=True)
class LayerChain:
    """Stages in order of execution; the last one's values are the model's outputs.

    Attributes:
        entrance: what happens elementwise to a record before the first layer.
    """

    entrance: Activation
    stages: tuple[Stage, ...]
    input_shape: tuple[int, ...]

    def outputs(self, record: Tensor) -> Tensor:
        """The model's outputs, flat, of one record."""
        x = self.entrance.value(record.flatten())
        for stage in self.stages:
            x = stage.activation.value(stage.linear(x) + stage.offset)
        return x
