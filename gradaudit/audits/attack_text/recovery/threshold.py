"""Thresholds between chance and evidence, from a sample of the null, on a log scale."""

import math

import torch
from scipy.special import ndtri
from torch import Tensor

_FALSE = 0.01
"""How many false ones there may be among all tests, on average."""
SEPARATE = 3.0
"""The misfit between what came in and chance, from which on the two are taken for apart."""
_QUANTILE = 0.1
"""Of the null, by which its spread to one side is told; what lies further out may not be null."""
_LOWEST = 0.01
_TINY = 1e-30


def limit_of(null: Tensor) -> float:
    """Between what came in, whose misfit is about one, and what chance makes, on a log scale.

    Halfway to the lowest hundredth of the null, which is taken to lie as far below its median as
    the highest lies above it: what came in may be among the lower half.

    Args:
        null: misfits of what did not come in, but for less than half of them.
    """
    logs = null.double().clamp(min=_TINY).log()
    middle, high = torch.quantile(logs, logs.new_tensor([0.5, 1 - _LOWEST])).tolist()
    return math.exp((2 * middle - high) / 2)


def above(values: Tensor, null: Tensor, tests: int) -> Tensor:
    """The places of values that are higher than what the null gives, one false in a hundred runs.

    The null's logarithms are taken for normal above their median, of the spread that their highest
    tenth shows.
    """
    logs = null.double().clamp(min=_TINY).log()
    ends = torch.quantile(logs, logs.new_tensor([0.5, 1 - _QUANTILE]))
    spread = float(ends[1] - ends[0]) / -float(ndtri(_QUANTILE))
    limit = float(ends[0]) - float(ndtri(_FALSE / max(tests, 1))) * spread
    return (values.double() > math.exp(limit)).nonzero()[:, 0]
