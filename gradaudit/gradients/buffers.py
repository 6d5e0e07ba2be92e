"""Memory that is written again as soon as nobody holds it.

A large tensor's memory goes back to the system when it is let go, and the pages of the next one
cost a CPU more than the product that is written to them: gradients of ResNet-18, record by record,
take .45 to .6 of the time in pages that are there (benchmarks/per_sample_speed.py).
"""

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

_WORTH = 1 << 20
"""Bytes from which on memory is kept: smaller blocks are kept by the allocator."""
_SLACK = 2
_KEPT = {torch.float32, torch.float64}


class Buffers:
    """Tensors on the CPU in memory that is used again once no tensor, view or array is left of it.

    Copies and pickles begin without any.
    """

    def __init__(self) -> None:
        self._arrays: defaultdict[torch.dtype, list[NDArray[Any]]] = defaultdict(list)

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of this shape, of the type and on the device of another, with any values."""
        count, dtype = math.prod(shape), like.dtype
        if like.device.type != "cpu" or dtype not in _KEPT or count * like.itemsize < _WORTH:
            return like.new_empty(shape)
        arrays = self._arrays[dtype]
        for index in range(len(arrays)):
            if count <= arrays[index].size <= _SLACK * count and _unused(arrays, index):
                break
        else:
            index = len(arrays)
            arrays.append(torch.empty(count, dtype=dtype).numpy())
        return torch.from_numpy(arrays[index][:count]).view(*shape)

    def clear(self) -> None:
        """Give back all that nobody holds."""
        self._arrays.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """None of them."""
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """None of them."""
        return type(self), ()


def _unused(arrays: list[NDArray[Any]], index: int) -> bool:
    """Whether the list alone refers to an array: it and the call do."""
    return sys.getrefcount(arrays[index]) == 2
