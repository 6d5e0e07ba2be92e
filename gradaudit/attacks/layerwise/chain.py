"""A network as a chain of linear layers with elementwise activations between them.

Chen & Campbell 2021, section 2: Z⁽ⁱ⁾ = W⁽ⁱ⁾ X⁽ⁱ⁾ + B⁽ⁱ⁾ and X⁽ⁱ⁺¹⁾ = A⁽ⁱ⁾(Z⁽ⁱ⁾). All maps are of
one record, its values flattened in the order in which the tensors hold them.

Activations can be inverted: eq. 2 needs the inverse and eq. 3 the derivative. What is given to an
inverse is a solution of a linear system and may lie outside of the activation's range: it is then
moved ``MARGIN`` inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

import torch
import torch.nn.functional as F
from torch import Tensor

from gradaudit.ranks.geometry import Convolution

MARGIN = 1e-12
"""Least distance from the ends of a range at which an inverse is taken."""


@dataclass(frozen=True)
class Activation(ABC):
    """A strictly increasing, piecewise differentiable function of each element."""

    @property
    def range(self) -> tuple[float, float]:
        """The open interval of its values."""
        return -inf, inf

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """a(z)."""

    @abstractmethod
    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""

    def inverse(self, a: Tensor, margin: float = MARGIN) -> Tensor:
        """The z with a(z) = a, of values moved so far into the range."""
        low, high = self.range
        return self._inverse(a.clamp(low + margin, high - margin))

    @abstractmethod
    def _inverse(self, a: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Tanh(Activation):
    """tanh z."""

    @property
    def range(self) -> tuple[float, float]:
        """(−1, 1)."""
        return -1.0, 1.0

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        return z.tanh()

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        return 1 / z.cosh().square()

    def _inverse(self, a: Tensor) -> Tensor:
        return a.atanh()


@dataclass(frozen=True)
class Sigmoid(Activation):
    """1 / (1 + e⁻ᶻ)."""

    @property
    def range(self) -> tuple[float, float]:
        """(0, 1)."""
        return 0.0, 1.0

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        return z.sigmoid()

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        return z.sigmoid() * (-z).sigmoid()

    def _inverse(self, a: Tensor) -> Tensor:
        return a.logit()


@dataclass(frozen=True)
class LeakyReLU(Activation):
    """z, times ``negative`` > 0 where z is negative."""

    negative: float

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        return F.leaky_relu(z, self.negative)

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        return torch.where(z > 0, torch.ones_like(z), self.negative)

    def _inverse(self, a: Tensor) -> Tensor:
        return torch.where(a > 0, a, a / self.negative)


@dataclass(frozen=True)
class ELU(Activation):
    """z, and ``alpha`` (eᶻ − 1) where z is negative."""

    alpha: float

    @property
    def range(self) -> tuple[float, float]:
        """(−alpha, ∞)."""
        return -self.alpha, inf

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        return F.elu(z, self.alpha)

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        return torch.where(z > 0, torch.ones_like(z), self.alpha * z.clamp_max(0).exp())

    def _inverse(self, a: Tensor) -> Tensor:
        return torch.where(a > 0, a, (a.clamp_max(0) / self.alpha).log1p())


@dataclass(frozen=True)
class Softplus(Activation):
    """log(1 + e^(beta z)) / beta."""

    beta: float

    @property
    def range(self) -> tuple[float, float]:
        """(0, ∞)."""
        return 0.0, inf

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        return F.softplus(z, self.beta, threshold=40)

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        return (self.beta * z).sigmoid()

    def _inverse(self, a: Tensor) -> Tensor:
        scaled = self.beta * a
        return (scaled + (-(-scaled).expm1()).log()) / self.beta


@dataclass(frozen=True)
class Composed(Activation):
    """Several activations, the first applied first; none of them is the identity."""

    parts: tuple[Activation, ...] = ()

    @property
    def range(self) -> tuple[float, float]:
        """Of the last one's values for what the one before it gives."""
        low, high = -inf, inf
        for part in self.parts:
            ends = torch.tensor([low, high], dtype=torch.float64)
            low, high = part.value(ends).tolist()
        return low, high

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        for part in self.parts:
            z = part.value(z)
        return z

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        slope = torch.ones_like(z)
        for part in self.parts:
            slope, z = slope * part.slope(z), part.value(z)
        return slope

    def _inverse(self, a: Tensor) -> Tensor:
        for part in reversed(self.parts):
            a = part.inverse(a)
        return a


def inside(activation: Activation, a: Tensor) -> Tensor:
    """Which elements lie in the activation's range, and so need not be moved."""
    low, high = activation.range
    return (a > low) & (a < high)


def composed(parts: Sequence[Activation]) -> Activation:
    """One activation for several in a row."""
    return parts[0] if len(parts) == 1 else Composed(tuple(parts))


@dataclass(frozen=True)
class Stage:
    """One linear layer and the activation behind it.

    Attributes:
        layer: name of the layer, as in ``named_modules``.
        weight: its weight.
        bias: its bias, None where it has none.
        weight_name: qualified name of the weight.
        bias_name: qualified name of the bias.
        input_shape: of X for one record; (inputs,) of a fully connected layer.
        output_shape: of Z for one record.
        activation: A.
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
class Chain:
    """Stages in order of execution; the last one's values are the model's outputs.

    Attributes:
        entrance: what happens elementwise to a record before the first layer.
        stages: at least one.
        input_shape: of a record.
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
