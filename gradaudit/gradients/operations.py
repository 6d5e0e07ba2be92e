"""The factors of a parameter's gradient at each of its uses.

A linear map that is used at T positions has the gradient G = Σ_t δ_t a_tᵀ, with a_t what came in
and δ_t the gradient at what came out. An operation lays both out as A (…, groups, in, positions)
and Δ (…, groups, out, positions), so that G = Δ Aᵀ, whatever the operation: fully connected,
convolutional (in = the taps of a filter), embedding (in = the tokens), the gain of a norm (a group
a channel) or an offset (A = 1).

Tensors come with the record first and, for tangents, the direction second: (records, …) or
(records, directions, …). Factors have (records, groups, in, positions) or (records, groups,
directions, in, positions).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Operation(ABC):
    """The operation of one use of a parameter, which gives its gradient's factors.

    Attributes:
        groups: blocks of the weight that see separate inputs.
        inputs: elements of a group's a_t.
        outputs: elements of a group's δ_t.
        shape: of the perturbed output, without records and directions.
        moves: whether A moves with what came in.
    """

    groups: int
    inputs: int
    outputs: int
    shape: tuple[int, ...]
    moves: ClassVar[bool] = True

    @property
    def positions(self) -> int:
        """The number of terms in the sum over positions."""
        return math.prod(self.shape) // (self.groups * self.outputs)

    @property
    def block(self) -> tuple[int, int, int]:
        """Shape (groups, out, in) of the gradient."""
        return self.groups, self.outputs, self.inputs

    def left(self, delta: Tensor) -> Tensor:
        """Arrange Δ, the gradient at the output, (records, groups, [directions,] out, positions).

        By default one of (…, positions, out), seen from its last dimension.
        """
        return delta.reshape(*self.leading(delta), -1, self.outputs).mT.unsqueeze(1)

    @abstractmethod
    def right(self, seen: Tensor) -> Tensor:
        """A (records, groups, [directions,] in, positions) of what came in, or of its tangents."""

    def weight(self, gradient: Tensor, seen: Tensor) -> Tensor:
        """G (records, groups, out, in) in the parameter's own layout, flattened: (records, …)."""
        return gradient.flatten(1)

    def leading(self, delta: Tensor) -> tuple[int, ...]:
        """The (records,) or (records, directions) before the output's own shape."""
        return tuple(delta.shape[: delta.dim() - len(self.shape)])


Uses = Sequence[tuple[int, Operation]]
"""A parameter's sites and operations there."""


@dataclass(frozen=True)
class Linear(Operation):
    """y_t = W x_t."""

    def right(self, seen: Tensor) -> Tensor:
        """Arrange A from inputs (…, positions, in), whose last dimension is the layer's."""
        lead = seen.dim() - len(self.shape)
        return seen.reshape(*seen.shape[:lead], -1, self.inputs).mT.unsqueeze(1)


@dataclass(frozen=True)
class Transposed(Linear):
    """y_t = Wᵀ x_t: a linear map whose weight is held as (in, out)."""

    def weight(self, gradient: Tensor, seen: Tensor) -> Tensor:
        """W as the parameter holds it."""
        return gradient.mT.flatten(1)


@dataclass(frozen=True)
class Convolution(Operation):
    """A convolution over any number of dimensions; a_t are the taps under the filter at t."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def left(self, delta: Tensor) -> Tensor:
        """Arrange Δ from (…, samples, groups × out, *positions)."""
        lead = self.leading(delta)
        spatial = math.prod(self.shape[-len(self.kernel) :])
        blocks = delta.reshape(*lead, -1, self.groups, self.outputs, spatial)
        return blocks.movedim(len(lead), -2).movedim(len(lead), 1).flatten(-2)

    def right(self, seen: Tensor) -> Tensor:
        """The patches of (…, samples, groups × channels, *positions)."""
        lead = seen.dim() - len(self.shape)
        taps = math.prod(self.kernel)
        channels, space = self.inputs // taps, seen.shape[-len(self.kernel) :]
        blocks = seen.reshape(*seen.shape[:lead], -1, self.groups, channels, *space)
        ordered = blocks.movedim(lead + 1, 1)
        patches = self._patches(ordered)
        return patches.reshape(*ordered.shape[: lead + 1], self.inputs, -1)

    def spread(self, left: Tensor, space: Sequence[int]) -> Tensor:
        """Compute Δ Ȧᵀ for the unit directions of one input channel.

        From Δ of one sample, (records, groups, out, positions), and the spatial shape of what came
        in to (records, groups, out, taps, *space flattened).
        """
        taps, size = math.prod(self.kernel), math.prod(space)
        numbers = torch.arange(1.0, size + 1, device=left.device).reshape(1, 1, 1, *space)
        under = replace(self, groups=1, inputs=taps).right(numbers).long()[0, 0]
        spread = left.new_zeros(*left.shape[:3], taps, size + 1)
        index = under.expand(*left.shape[:3], -1, -1)
        spread.scatter_(-1, index, left.unsqueeze(3).expand_as(index))
        return spread[..., 1:]

    def _patches(self, seen: Tensor) -> Tensor:
        """View (…, samples, channels, *space) as (…, channels, *kernel, samples, *positions)."""
        count = len(self.kernel)
        if any(before or after for before, after in self.padding):
            seen = F.pad(seen, tuple(chain.from_iterable(reversed(self.padding))))
        outer, steps = seen.shape[:-count], seen.stride()
        sizes = (*outer, *self.kernel, *self.shape[-count:])
        taps = [step * d for step, d in zip(steps[-count:], self.dilation, strict=True)]
        moves = [step * s for step, s in zip(steps[-count:], self.stride, strict=True)]
        view = seen.as_strided(sizes, (*steps[:-count], *taps, *moves))
        return view.movedim(len(outer) - 2, len(outer) - 1 + count)


@dataclass(frozen=True)
class Gain(Operation):
    """y = γ ⊙ x̂, the gain of a norm: every channel is a group of its own."""

    channels_last: bool

    def left(self, delta: Tensor) -> Tensor:
        """Arrange Δ as (…, channels, 1, positions)."""
        lead = len(self.leading(delta))
        ordered = channels_first(delta, self.shape, self.groups, self.channels_last)
        return ordered.movedim(lead, 1).unsqueeze(-2)

    def right(self, seen: Tensor) -> Tensor:
        """The normalised input, which has the shape of the output."""
        return self.left(seen)


@dataclass(frozen=True)
class Offset(Operation):
    """y_t = z_t + b, a bias: A is one."""

    channels_last: bool
    moves: ClassVar[bool] = False

    def left(self, delta: Tensor) -> Tensor:
        """Arrange Δ as (…, channels, positions)."""
        return channels_first(delta, self.shape, self.outputs, self.channels_last).unsqueeze(1)

    def right(self, seen: Tensor) -> Tensor:
        """Return A, which is one at every position."""
        return seen.new_ones(len(seen), 1, 1, self.positions)


@dataclass(frozen=True)
class Embedding(Operation):
    """y_t = row x_t of a table; A marks the rows that were read, at most one a position.

    ``tokens`` are the rows of the whole table; the gradient of the row ``padding``, if not -1, is
    always zero.
    """

    tokens: int
    padding: int
    moves: ClassVar[bool] = False

    def right(self, seen: Tensor) -> Tensor:
        """One-hot matrix of the table's row at each position, over all rows or those read."""
        read = seen.flatten(1)
        rows = read
        if self.inputs < self.tokens:  # each record's tokens by their order among its distinct ones
            rows = torch.stack([record.unique(return_inverse=True)[1] for record in read])
        marks = F.one_hot(rows, self.inputs) * (read != self.padding).unsqueeze(2)
        return marks.mT.unsqueeze(1)

    def weight(self, gradient: Tensor, seen: Tensor) -> Tensor:
        """The rows that were read, at their places in the whole table."""
        gradient = gradient.mT
        if self.inputs == self.tokens:
            return gradient.flatten(1)
        table = gradient.new_zeros(len(gradient), self.tokens, self.outputs)
        for place, rows, tokens in zip(table, gradient[:, 0], seen.flatten(1), strict=True):
            read = tokens.unique()
            place[read] = rows[: len(read)]
        return table.flatten(1)


def channels_first(
    tensor: Tensor, shape: Sequence[int], channels: int, channels_last: bool
) -> Tensor:
    """Arrange (…, *shape) as (…, channels, positions); channels are second or last."""
    lead = tensor.shape[: tensor.dim() - len(shape)]
    if channels_last:
        return tensor.reshape(*lead, -1, channels).mT
    blocks = tensor.reshape(*lead, shape[0], channels, -1)
    return blocks.movedim(len(lead), -2).flatten(-2)
