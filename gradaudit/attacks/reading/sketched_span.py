"""The number of dimensions that the inputs of a linear map fill, where it is small."""

import math
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from gradaudit.attacks.reading.base import Reading, ReadingUnit, ReadingValue, untold
from gradaudit.sharing.named import NamedUpdate

_SKETCH = 64
"""Dimensions up to which a span is counted."""
_SPARE = 8
_MARGIN = 4.0
_NO_MAP = "no weight of two dimensions, whose update would have a span"
_WIDE = "what came in fills {0} dimensions or more of {1}, of which a glance counts no more"


class SketchedSpan(Reading):
    """The rank of a linear map's update Σ_t δ_t a_tᵀ: no more than the positions behind it.

    Whoever holds a text or a record can test whether what it brings in lies in the span of the
    rows (Petrov et al. 2024, DAGER, theorem 3.1), which says something where the span is not the
    whole space. Counted are singular values of a random sketch of 64 columns, which has the same
    rank up to that, above what rounding makes of them.
    """

    name: ClassVar[str] = "span"
    summary: ClassVar[str] = "Dimensions that a batch fills at each linear map."
    priority: ClassVar[int] = 50

    def pieces(self, update: NamedUpdate) -> Iterator[ReadingUnit]:
        """Make one unit of work for each layer."""
        for layer, names in update.layers().items():
            maps = [name for name in names if update.after[name].dim() == 2]
            if maps and min(update.after[maps[0]].shape) > _SPARE:
                elements = _SKETCH * update.after[maps[0]].numel() // 8
                look = partial(_counted, update, layer, maps[0])
                yield ReadingUnit(("span_share",), layer, elements, look, cut=True)
            else:
                yield untold("span_share", layer, _NO_MAP)


def _counted(update: NamedUpdate, layer: str, name: str, share: float) -> Iterator[ReadingValue]:
    weight = update.change(name)
    width = weight.shape[1]
    if share < 1:
        every = max(1, math.floor(len(weight) / max(_SKETCH + _SPARE, share * len(weight))))
        weight = weight[::every]
    most = min(_SKETCH, *weight.shape) - _SPARE
    rank = sketched_rank(weight, update.rounding(name))
    if rank == 0:
        yield ReadingValue("span_share", layer, None, "it did not move")
    elif rank > most:
        yield ReadingValue("span_share", layer, None, _WIDE.format(most, width))
    else:
        details = {"rank": rank, "width": width, "rows_looked_at": len(weight)}
        yield ReadingValue("span_share", layer, rank / width, details=dict(details))


def sketched_rank(matrix: Tensor, noise: float) -> int:
    """The number of singular values of a sketch of a matrix (rows, width) above rounding.

    Args:
        matrix: the update of a linear map.
        noise: standard deviation of what rounding adds to an element, beside that of a product.
    """
    rows, width = matrix.shape
    count = min(_SKETCH, rows, width)
    draws = torch.randn(width, count, generator=torch.Generator().manual_seed(0))
    sketch = (matrix @ (draws / math.sqrt(width)).to(matrix)).double()
    values = torch.linalg.eigvalsh(sketch.T @ sketch).clamp(min=0).sqrt().flip(0)
    eps = torch.finfo(matrix.dtype).eps
    edge = noise * (math.sqrt(rows) + math.sqrt(count)) + 8 * eps * float(values[0])
    return int((values > max(_MARGIN * edge, 1e-7 * float(values[0]))).sum())
