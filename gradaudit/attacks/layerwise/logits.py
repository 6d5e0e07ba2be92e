"""∂J/∂z at the last layer's output and the layer's input, from the layer's update.

With a bias, ∂J/∂b is ∂J/∂z itself and the input follows from ∇W = δ xᵀ. Without one only the
direction of δ is known: with ∇W = ‖∇W‖ u vᵀ the input is x = t v/‖v‖… for one unknown t, and

    t ⟨δ(t q), u⟩ = ‖∇W‖,    q = W v,    δ(z) = ∂J/∂z,

is a scalar equation (Zhu & Blaschko 2021, section 3.2: ⟨W, ∇W⟩ = μ J′(μ)). Its left side grows
from zero and, where the loss saturates, falls back to it, so that it has two roots, of which one
is the truth: all of them are found, by brackets, and tried.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor

from gradaudit.errors import NotApplicable

OutputGradient: TypeAlias = Callable[[Tensor], Tensor]
"""∂J/∂z of (logits, …) for outputs z (logits, …)."""
Function: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""A function of points (points,) to values (points,)."""
_RANK_ONE = 1e-4
_GRID = np.logspace(-6, 6, 1201)
_PRECISION = float(4 * np.finfo(np.float64).eps)


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
    return LastLayer(bias_gradient, fully_connected_input(weight_gradient, bias_gradient))


def without_bias(
    weight_gradient: Tensor, weight: Tensor, output_gradient: OutputGradient
) -> list[LastLayer]:
    """The last layer by the scalar equation, one for each of its roots.

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


def fully_connected_input(weight_gradient: Tensor, delta: Tensor) -> Tensor:
    """The input of a fully connected layer, x = ∇Wᵀ δ / ‖δ‖²: all rows of ∇W = δ xᵀ.

    Chen & Campbell 2021, lemma A.1, has one row; least squares over all of them is not worse.

    Args:
        weight_gradient: (outputs, inputs).
        delta: ∂J/∂z, (outputs,).

    Raises:
        NotApplicable: δ is zero.
    """
    length = delta.square().sum()
    if not length > 0:
        raise NotApplicable(
            "the gradient at a fully connected layer's output is zero: it shows nothing of its "
            "input"
        )
    return delta @ weight_gradient / length


def _rank_one(weight_gradient: Tensor) -> tuple[Tensor, float, Tensor]:
    """u, length and v with ∇W = length · u vᵀ."""
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
    """Every t with left(t) = right and 1e-6 ≤ |t| ≤ 1e6, positive ones first.

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
