"""A network as a chain of linear layers with elementwise activations between them.

Chen & Campbell 2021, section 2: Z⁽ⁱ⁾ = W⁽ⁱ⁾ X⁽ⁱ⁾ + B⁽ⁱ⁾ and X⁽ⁱ⁺¹⁾ = A⁽ⁱ⁾(Z⁽ⁱ⁾). All maps are of
one record, its values flattened in the order in which the tensors hold them.

Activations can be inverted: eq. 2 needs the inverse and eq. 3 the derivative. What is given to an
inverse is a solution of a linear system and may lie outside of the activation's range: it is then
moved ``MARGIN`` inside.

∂J/∂z at the last layer's output, and the layer's input, follow from the layer's update. With a
bias, ∂J/∂b is ∂J/∂z itself and the input follows from ∇W = δ xᵀ. Without one only the direction of
δ is known: with ∇W = ‖∇W‖ u vᵀ the input is x = t v/‖v‖… for one unknown t, and

    t ⟨δ(t q), u⟩ = ‖∇W‖,    q = W v,    δ(z) = ∂J/∂z,

is a scalar equation (Zhu & Blaschko 2021, section 3.2: ⟨W, ∇W⟩ = μ J′(μ)). Its left side grows
from zero and, where the loss saturates, falls back to it, so that it has two roots, of which one
is the truth: all of them are found, by brackets, and tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf, prod
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor

from gradaudit.errors import NotApplicable
from gradaudit.ranks.observe import Convolution

OutputGradient: TypeAlias = Callable[[Tensor], Tensor]
"""∂J/∂z of (logits, …) for outputs z (logits, …)."""
Function: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""A function of points (points,) to values (points,)."""
_RANK_ONE = 1e-4
_GRID = np.logspace(-6, 6, 1201)
_PRECISION = float(4 * np.finfo(np.float64).eps)
MARGIN = 1e-12
"""Least distance from the ends of a range at which an inverse is taken."""


@dataclass(frozen=True)
class LastLayer:
    """A possible input and output gradient of the last layer.

    Attributes:
        delta: ∂J/∂z, (outputs,).
        x: the layer's input, (inputs,).
    """

    delta: Tensor
    x: Tensor


def with_bias(weight_gradient: Tensor, bias_gradient: Tensor) -> LastLayer:
    """Read the last layer's input and its output's gradient off the gradients of weight and bias.

    Args:
        weight_gradient: (outputs, inputs).
        bias_gradient: (outputs,).

    Raises:
        NotApplicable: the bias gradient is zero.
    """
    return LastLayer(bias_gradient, invert_linear(weight_gradient, bias_gradient))


def without_bias(
    weight_gradient: Tensor, weight: Tensor, output_gradient: OutputGradient
) -> list[LastLayer]:
    """Solve the last layer by the scalar equation, once for each root.

    Args:
        weight_gradient: (outputs, inputs), of one record.
        weight: (outputs, inputs).
        output_gradient: δ for the label that is tried.

    Raises:
        NotApplicable: the gradient is zero or that of more than one record.
    """
    u, length, v = _rank_one(weight_gradient)
    direction = weight @ v

    def left(t: NDArray[np.float64]) -> NDArray[np.float64]:
        z = torch.from_numpy(t).to(direction)[:, None] * direction
        return np.asarray(t * (output_gradient(z) @ u).cpu().numpy())

    return [LastLayer(u * length / t, t * v) for t in roots(left, length)]


def invert_linear(weight_gradient: Tensor | ArrayLike, delta: Tensor | ArrayLike) -> Tensor:
    """Invert a fully connected layer: its input from its gradients.

    x = ∇Wᵀ δ / ‖δ‖², least squares over all rows of ∇W = δ xᵀ; δ is the gradient of the bias (Fan
    et al. 2020, theorem 2.1; Chen and Campbell 2021, lemma A.1). ``inversion_bound`` bounds its
    error under noise.

    >>> x, delta = torch.tensor([0.2, -1.0, 3.0]), torch.tensor([0.5, -0.1])
    >>> invert_linear(torch.outer(delta, x), delta)
    tensor([ 0.2000, -1.0000,  3.0000])

    Args:
        weight_gradient: (outputs, inputs), of one record.
        delta: ∂J/∂z, (outputs,).

    Raises:
        NotApplicable: δ is zero.
    """
    weight_gradient, delta = torch.as_tensor(weight_gradient), torch.as_tensor(delta)
    length = delta.square().sum()
    if not length > 0:
        raise NotApplicable(
            "the gradient at a fully connected layer's output is zero: it shows nothing of its "
            "input"
        )
    return delta @ weight_gradient / length


def _rank_one(weight_gradient: Tensor) -> tuple[Tensor, float, Tensor]:
    """Decompose ∇W = length · u vᵀ into u, length and v."""
    u, values, v = torch.linalg.svd(weight_gradient, full_matrices=False)
    if not values[0] > 0:
        raise NotApplicable("the last layer's gradient is zero: it shows nothing of its input")
    if len(values) > 1 and values[1] > _RANK_ONE * values[0]:
        raise NotApplicable(
            "the last layer has no bias and its gradient is not of rank one, as that of a single "
            "record is: noise or several records hide the direction"
        )
    return u[:, 0], float(values[0]), v[0]


def roots(left: Function, right: float) -> list[float]:
    """Find every t with left(t) = right and 1e-6 ≤ |t| ≤ 1e6, positive ones first.

    The brackets are neighbours on a logarithmic grid. Where the left side turns between two points
    of it, its extremum is sought, so that two roots close together are not missed.
    """

    def difference(t: float) -> float:
        return float(left(np.array([t]))[0]) - right

    solutions: list[float] = []
    for sign in (1.0, -1.0):
        points = _with_extrema(difference, sign * _GRID, left(sign * _GRID) - right)
        values = left(points) - right
        crossed = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
        solutions += [
            float(brentq(difference, points[n], points[n + 1], xtol=1e-300, rtol=_PRECISION))
            for n in crossed
        ]
        solutions += points[values == 0].tolist()
    return solutions


def _with_extrema(
    difference: Callable[[float], float], points: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The points, in order of size, with those where the difference comes closest to zero."""
    size = np.abs(values)
    turns = np.flatnonzero((size[1:-1] < size[:-2]) & (size[1:-1] < size[2:])) + 1
    extrema = []
    for n in turns:
        low, high = sorted((float(points[n - 1]), float(points[n + 1])))
        toward = partial(lambda sign, t: sign * difference(float(t)), float(np.sign(values[n])))
        extrema.append(float(minimize_scalar(toward, bounds=(low, high)).x))
    return np.sort(np.concatenate([points, extrema]))


Elementwise = Callable[[Tensor], Tensor]


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
    """The logistic function 1 / (1 + e⁻ᶻ)."""
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
    """The function log(1 + e^(beta z)) / beta."""
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
    """A linear layer followed by an activation.

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
        """Return the number of elements of the layer's input X."""
        return prod(self.input_shape)

    @property
    def outputs(self) -> int:
        """Return the number of elements of the layer's output Z."""
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
