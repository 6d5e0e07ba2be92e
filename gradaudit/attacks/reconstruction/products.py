"""Small convolutions as matrix products: in float32 on a CPU the library's set-up costs more.

A single restart of DLG on LeNet is evaluated 1.2 times as fast, and 1.5 times where it is recorded
(benchmarks/fast_paths.py).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

MOST_COLUMNS = 1 << 16
"""Elements of an unfolded input up to which a convolution becomes a product."""


class SmallConvolutionsAsProducts(TorchFunctionMode):
    """Lets two-dimensional convolutions of small inputs run as products with unfolded inputs.

    The numbers are the same but for rounding.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """``product_of`` for ``conv2d`` where it applies, everything else as it is."""
        if func is torch.conv2d:
            product = product_of(*args, **(kwargs or {}))
            if product is not None:
                return product
        return func(*args, **(kwargs or {}))


def product_of(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """What ``conv2d`` gives for these arguments, None where it is to do it itself."""
    if input.dim() != 4 or groups != 1 or isinstance(padding, str):
        return None
    stride, padding, dilation = _pair(stride), _pair(padding), _pair(dilation)
    kernel = (weight.shape[2], weight.shape[3])
    height, width = (
        (input.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    )
    if not 0 < weight[0].numel() * len(input) * height * width <= MOST_COLUMNS:
        return None
    columns = F.unfold(input, kernel, dilation, padding, stride)
    output = (weight.flatten(1) @ columns).reshape(len(input), len(weight), height, width)
    return output if bias is None else output + bias[:, None, None]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])
