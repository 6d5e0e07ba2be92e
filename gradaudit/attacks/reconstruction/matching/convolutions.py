"""Two-dimensional convolutions of small pictures as products with the patches under the filter.

The library's ``unfold`` goes element by element; a strided copy takes an eighth to all of its time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradaudit.gradients.capture import FunctionMode

MOST_COLUMNS = 1 << 20
"""Elements of one record's patches up to which a convolution becomes a product."""
_LARGE = 1 << 15
"""Elements of one record's patches from which taps are added up one after the other."""
_MANY = 64
"""Positions of a record from which on it is worth a product of its own."""
_Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """A filter's window: kernel, stride, padding and dilation of rows and of columns."""

    kernel: _Pair
    stride: _Pair
    padding: _Pair
    dilation: _Pair

    def padded(self, sides: _Pair) -> _Pair:
        """Rows and columns of a picture with its padding."""
        return sides[0] + 2 * self.padding[0], sides[1] + 2 * self.padding[1]

    def places(self, sides: _Pair) -> _Pair:
        """Count the filter's positions on a picture, down and across."""
        down, across = (
            (side - d * (k - 1) - 1) // s + 1
            for side, d, k, s in zip(
                self.padded(sides), self.dilation, self.kernel, self.stride, strict=True
            )
        )
        return down, across

    def under(self, pictures: Tensor) -> Tensor:
        """The patches (n, channels × taps, places) of pictures (n, channels, rows, columns)."""
        down, across = self.padding
        padded = F.pad(pictures, (across, across, down, down)).contiguous()
        *outer, row, column = padded.stride()
        steps = [row * self.dilation[0], column * self.dilation[1]]
        moves = [row * self.stride[0], column * self.stride[1]]
        places = self.places((pictures.shape[2], pictures.shape[3]))
        view = padded.as_strided(
            (*padded.shape[:2], *self.kernel, *places),
            (*outer, *steps, *moves),
            padded.storage_offset(),
        )
        return view.reshape(len(padded), -1, places[0] * places[1])

    def spread(self, patches: Tensor, sides: _Pair) -> Tensor:
        """The adjoint of cutting patches: adds each patch to the positions that it was cut from."""
        if patches[0].numel() < _LARGE:
            return F.fold(patches, sides, self.kernel, self.dilation, self.padding, self.stride)
        places = self.places(sides)
        by_tap = patches.reshape(len(patches), -1, *self.kernel, *places)
        padded = patches.new_zeros(by_tap.shape[:2] + self.padded(sides))
        for down, across in product(*map(range, self.kernel)):
            under = padded[:, :, self._seen(0, down, places), self._seen(1, across, places)]
            under += by_tap[:, :, down, across]
        down, across = self.padding
        return padded[:, :, down : down + sides[0], across : across + sides[1]]

    def _seen(self, side: int, tap: int, places: _Pair) -> slice:
        """Rows or columns that a tap sees."""
        first, step = tap * self.dilation[side], self.stride[side]
        return slice(first, first + step * (places[side] - 1) + 1, step)


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pictures: Tensor, window: Window) -> Tensor:
        ctx.window, ctx.sides = window, (pictures.shape[2], pictures.shape[3])
        return window.under(pictures)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _spread(gradients[0], ctx.window, ctx.sides), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, patches: Tensor, window: Window, sides: _Pair) -> Tensor:
        ctx.window = window
        return window.spread(patches, sides)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _patches(gradients[0], ctx.window), None, None


_patches: Callable[[Tensor, Window], Tensor] = _Patches.apply
_spread: Callable[[Tensor, Window, _Pair], Tensor] = _Spread.apply


@dataclass(frozen=True)
class PatchedConvolution:
    """A convolution of pictures (n, channels, rows, columns) as a product with their patches."""

    window: Window

    @classmethod
    def of(
        cls,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> "PatchedConvolution | None":
        """The convolution of these arguments; None where ``conv2d`` should run itself."""
        if input.dim() != 4 or groups != 1 or isinstance(padding, str):
            return None
        kernel = (weight.shape[2], weight.shape[3])
        window = Window(kernel, _pair(stride), _pair(padding), _pair(dilation))
        down, across = window.places((input.shape[2], input.shape[3]))
        if min(down, across) < 1 or weight[0].numel() * down * across > MOST_COLUMNS:
            return None
        return cls(window)

    def patches(self, pictures: Tensor) -> Tensor:
        """Cut the patches, (n, channels × taps, places)."""
        return _patches(pictures, self.window)

    def applied(
        self, pictures: Tensor, patches: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """The result of ``conv2d``, (n, out, down, across)."""
        output = times(weight.flatten(1), patches)
        output = output if bias is None else output + bias[:, None]
        places = self.window.places((pictures.shape[2], pictures.shape[3]))
        return output.reshape(*output.shape[:2], *places)


def times(matrix: Tensor, columns: Tensor) -> Tensor:
    """A matrix times columns (…, in, positions): one product where each had few."""
    if columns.shape[-1] < _MANY:
        return (columns.mT @ matrix.mT).mT
    return matrix @ columns


class ConvolutionsAsProducts(FunctionMode):
    """Lets two-dimensional convolutions of small pictures run as products with their patches.

    The numbers are the same but for rounding.
    """

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """A product for ``conv2d`` where it applies, everything else as it is."""
        found = convolved(*args, **kwargs) if function is torch.conv2d else None
        return function(*args, **kwargs) if found is None else found


def convolved(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **others: Any
) -> Tensor | None:
    """The result of ``conv2d`` for these arguments, None where ``conv2d`` should run itself."""
    way = PatchedConvolution.of(input, weight, bias, *rest, **others)
    return way if way is None else way.applied(input, way.patches(input), weight, bias)


def _pair(size: Any) -> _Pair:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])
