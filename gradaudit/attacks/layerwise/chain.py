"""A network as a chain of linear layers with elementwise activations between them.

Chen & Campbell 2021, section 2: Z⁽ⁱ⁾ = W⁽ⁱ⁾ X⁽ⁱ⁾ + B⁽ⁱ⁾ and X⁽ⁱ⁺¹⁾ = A⁽ⁱ⁾(Z⁽ⁱ⁾). All maps are of
one record, its values flattened in the order in which the tensors hold them.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from gradaudit.attacks.layerwise.activations import Activation
from gradaudit.ranks.geometry import Convolution


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
