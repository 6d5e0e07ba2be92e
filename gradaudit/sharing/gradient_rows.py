"""Gradients of one layer, many rows of them, and those of records layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradaudit.gradients.per_sample import PerSampleGradients
from gradaudit.models.target import Layer

QUICK_BYTES = 2 << 20
"""Larger blocks go back to the system after every use, and fetching them again costs more than
the arithmetic."""
_CACHED_BYTES = 2 << 20
"""A block of columns that is summed many times over should stay in a cache."""
_NARROWEST = 64
T = TypeVar("T")


def mix(gradients: Tensor, rows: Tensor, weights: Tensor, into: Tensor) -> None:
    """Sum weighted rows, as sparse products with blocks of columns that fit a cache.

    Args:
        gradients: (rows, elements).
        rows: (sums, terms) which of them.
        weights: (sums, terms) times what.
        into: (sums, elements) that they are written to, on any device.
    """
    (count, elements), size = gradients.shape, gradients.element_size()
    columns = elements
    if rows.numel() > count:  # else it does not pay to copy a block
        columns = min(columns, max(_NARROWEST, _CACHED_BYTES // (size * count)))
    step = max(1, QUICK_BYTES // (size * columns))
    rows, weights = rows.to(gradients.device), weights.to(gradients)
    for left in range(0, elements, columns):
        block = gradients[:, left : left + columns].contiguous()
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            into[part, left : left + columns] = F.embedding_bag(
                rows[part], block, per_sample_weights=weights[part], mode="sum"
            )


def empty_rows(rows: int, elements: int, dtype: torch.dtype) -> Tensor:
    """An empty tensor on the CPU; numpy asks the system for large pages, which come faster."""
    kind = {torch.float32: np.float32, torch.float64: np.float64}.get(dtype)
    if kind is None:
        return torch.empty(rows, elements, dtype=dtype)
    return torch.from_numpy(np.empty((rows, elements), kind))


def weighted_sums(gradients: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums (sums, elements) of rows (sums, terms), where the gradients lie."""
    shape = len(rows), gradients.shape[1]
    sums = torch.empty(shape, dtype=weights.dtype, device=gradients.device)
    mix(gradients, rows, weights, sums)
    return sums


Piece = tuple[slice, Layer, Tensor]
"""Rows of one layer, and where they lie among all."""


@dataclass(frozen=True)
class RecordRows:
    """Rows of gradients, one a record.

    Attributes:
        gradients: the engine, for all records that are looked at.
        factors: (rows,) that a layer's rows are multiplied by; a layer without is left as it is.
    """

    gradients: PerSampleGradients
    factors: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.gradients)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.gradients.view.dtype.itemsize

    def pieces(self, layers: Iterable[Layer]) -> Iterator[Piece]:
        """The rows of these layers, batch by batch of the engine."""
        layers, engine = list(layers), self.gradients
        for start in range(0, len(engine), engine.batch):
            stop = min(start + engine.batch, len(engine))
            batch, where = engine.run(start, stop, layers), slice(start, stop)
            for layer in layers:
                rows = batch.pop(layer.name)
                if layer.name in self.factors:
                    rows = rows * self.factors[layer.name][where][:, None].to(rows)
                yield where, layer, rows

    def bytes_of(self, layer: Layer) -> int:
        """Bytes of one record's row."""
        return self.itemsize * layer.parameters


def together(items: Iterable[T], size: Callable[[T], int], memory: int) -> Iterator[list[T]]:
    """Items in order, as many at a time as fit in the memory by their sizes; at least one."""
    group: list[T] = []
    taken = 0
    for item in items:
        if group and taken + size(item) > memory:
            yield group
            group, taken = [], 0
        group.append(item)
        taken += size(item)
    if group:
        yield group
