"""Gradients of one layer, many rows of them, formed or left in factors; and those of records.

A row is the gradient G = Σ_t δ_t a_tᵀ of one record. As factors it takes T(out + in) numbers
instead of out · in, and inner products, norms, single elements and means over batches of records
can be had without forming it: ⟨G, H⟩ = Σ_{t,s} ⟨δ_t, ε_s⟩⟨a_t, b_s⟩. The gradients of single
records come layer by layer, as often as it is asked, in the form that takes the least memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradaudit.gradients.operations import Convolution, Linear, Operation
from gradaudit.gradients.per_sample import PerSampleGradients
from gradaudit.gradients.trace import Gradients
from gradaudit.models.target import Layer

QUICK_BYTES = 2 << 20
"""Larger blocks go back to the system after every use, and fetching them again costs more than
the arithmetic."""
_CACHED_BYTES = 2 << 20
"""A block of columns that is summed many times over should stay in a cache."""
_NARROWEST = 64
_PAIRS = 1 << 22
"""Inner products of factors that are held at a time."""
T = TypeVar("T")


@dataclass(frozen=True)
class Dense:
    """Gradients of one layer that are formed.

    Attributes:
        values: (rows, elements).
    """

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    @property
    def device(self) -> torch.device:
        """Device of the values."""
        return self.values.device

    @property
    def elements(self) -> int:
        """The number of elements of a row."""
        return self.values.shape[1]

    def dense(self) -> Tensor:
        """The formed rows, (rows, elements)."""
        return self.values

    def columns(self, elements: Tensor) -> Tensor:
        """Form the chosen columns, (rows, chosen)."""
        return self.values[:, elements]

    def squares(self) -> Tensor:
        """Compute squared norms, (rows,) in float64."""
        norms: Tensor = torch.linalg.vector_norm(self.values, dim=1, dtype=torch.float64)
        return norms.square()

    def scaled(self, factors: Tensor) -> Dense:
        """Each row times its factor."""
        return Dense(self.values * factors[:, None].to(self.values))

    def mix(self, rows: Tensor, weights: Tensor, into: Tensor) -> None:
        """Weighted sums of rows, as sparse products with blocks of columns that fit a cache.

        Args:
            rows: (sums, terms) which rows.
            weights: (sums, terms) times what.
            into: (sums, elements) that they are written to, on any device.
        """
        size, columns = self.values.element_size(), self.elements
        if rows.numel() > len(self):  # else it does not pay to copy a block
            columns = min(columns, max(_NARROWEST, _CACHED_BYTES // (size * len(self))))
        step = max(1, QUICK_BYTES // (size * columns))
        rows, weights = rows.to(self.device), weights.to(self.values)
        for left in range(0, self.elements, columns):
            block = self.values[:, left : left + columns].contiguous()
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


@dataclass(frozen=True)
class FactoredRows:
    """Gradients Δ Aᵀ of one layer, not formed.

    Attributes:
        left: Δ (rows, out, positions).
        right: A (rows, in, positions).
    """

    left: Tensor
    right: Tensor

    def __len__(self) -> int:
        return len(self.left)

    @property
    def device(self) -> torch.device:
        """Device of the factors."""
        return self.left.device

    @property
    def width(self) -> int:
        """T(out + in), the numbers that a row takes."""
        return self.left[0].numel() + self.right[0].numel()

    @property
    def elements(self) -> int:
        """Number of elements, outputs times inputs."""
        return self.left.shape[1] * self.right.shape[1]

    def dense(self) -> Tensor:
        """Form the rows, (rows, out · in)."""
        if self.left.shape[2] == 1:
            return (self.left * self.right.mT).flatten(1)
        return (self.left @ self.right.mT).flatten(1)

    def columns(self, elements: Tensor) -> Tensor:
        """Form the chosen columns alone, (rows, chosen)."""
        inputs = self.right.shape[1]
        out, into = elements // inputs, elements % inputs
        return (self.left[:, out] * self.right[:, into]).sum(dim=2)

    def squares(self) -> Tensor:
        """Compute squared norms (rows,) in float64 from T × T inner products."""
        left, right = self.left.double(), self.right.double()
        return ((left.mT @ left) * (right.mT @ right)).sum(dim=(1, 2))

    def scaled(self, factors: Tensor) -> FactoredRows:
        """Each row times its factor."""
        return FactoredRows(self.left * factors[:, None, None].to(self.left), self.right)

    def gram(self, other: FactoredRows) -> Tensor:
        """Inner products with other gradients, (rows, others) float64."""
        pairs = self.left.shape[2] * len(other) * other.left.shape[2]
        step = max(1, _PAIRS // pairs)
        parts = [
            _products(self.left[i : i + step], other.left, self.right[i : i + step], other.right)
            for i in range(0, len(self), step)
        ]
        return torch.cat(parts)

    def mix(self, rows: Tensor, weights: Tensor, into: Tensor) -> None:
        """Weighted sums as ``Dense.mix`` gives them, as products of the stacked factors."""
        rows, weights = rows.to(self.device), weights.to(self.left)
        bytes_each = (self.elements + rows.shape[1] * self.width) * self.left.element_size()
        step = max(1, QUICK_BYTES // bytes_each)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            left = _stacked(self.left[rows[part]] * weights[part, :, None, None])
            right = _stacked(self.right[rows[part]]).mT
            if into.device == self.device:
                torch.bmm(left, right, out=into[part].view(-1, left.shape[1], right.shape[2]))
            else:
                into[part] = (left @ right).flatten(1)


GradientRows = Dense | FactoredRows


def weighted_sums(gradients: GradientRows, rows: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums (sums, elements) of rows (sums, terms), where the gradients lie."""
    shape = len(rows), gradients.elements
    sums = torch.empty(shape, dtype=weights.dtype, device=gradients.device)
    gradients.mix(rows, weights, sums)
    return sums


def joined(parts: Sequence[GradientRows]) -> GradientRows:
    """Parts of one kind, one after the other."""
    if formed := [part.values for part in parts if isinstance(part, Dense)]:
        return Dense(torch.cat(formed))
    factors = [part for part in parts if isinstance(part, FactoredRows)]
    return FactoredRows(
        torch.cat([part.left for part in factors]), torch.cat([part.right for part in factors])
    )


def _stacked(factors: Tensor) -> Tensor:
    """Join terms: (sums, terms, width, positions) to (sums, width, terms · positions)."""
    if factors.shape[3] == 1:
        return factors[..., 0].mT
    return factors.transpose(1, 2).flatten(2)


def _products(left: Tensor, others: Tensor, right: Tensor, beside: Tensor) -> Tensor:
    products = _all_pairs(left.double(), others.double())
    products *= _all_pairs(right.double(), beside.double())
    if products.shape[1] == products.shape[3] == 1:
        return products[:, 0, :, 0]
    return products.sum(dim=(1, 3))


def _all_pairs(one: Tensor, other: Tensor) -> Tensor:
    """Multiply all pairs: (n, width, T) and (m, width, S) to inner products (n, T, m, S)."""
    flat, beside = one.mT.flatten(0, 1), other.mT.flatten(0, 1)
    return (flat @ beside.T).view(len(one), one.shape[2], len(other), other.shape[2])


Piece = tuple[slice, Layer, GradientRows]
"""Rows of one layer, and where they lie among all."""


@dataclass(frozen=True)
class RecordRows:
    """Rows of gradients, one a record.

    Attributes:
        gradients: the engine, for all records that are looked at.
        memory: bytes that formed gradients may take at a time.
        factors: (rows,) that a layer's rows are multiplied by; a layer without is left as it is.
    """

    gradients: PerSampleGradients
    memory: int
    factors: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.gradients)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.gradients.trace.view.dtype.itemsize

    def pieces(self, layers: Iterable[Layer]) -> Iterator[Piece]:
        """The rows of these layers, batch by batch of the engine."""
        layers, engine = list(layers), self.gradients
        for start in range(0, len(engine), engine.batch):
            stop = min(start + engine.batch, len(engine))
            batch = engine.run(start, stop)
            for layer in layers:
                for where, rows in self._of_batch(batch, layer, start, stop):
                    if layer.name in self.factors:
                        rows = rows.scaled(self.factors[layer.name][where])
                    yield where, layer, rows

    def bytes_of(self, layer: Layer) -> int:
        """Bytes of one record's row."""
        place = self._factored(layer)
        return self.itemsize * (_factor_size(place[1]) if place else layer.parameters)

    def factored(self, layer: Layer) -> bool:
        """Whether its rows come as factors."""
        return self._factored(layer) is not None

    def _of_batch(
        self, found: Gradients, layer: Layer, start: int, stop: int
    ) -> Iterator[tuple[slice, GradientRows]]:
        if (place := self._factored(layer)) is not None:
            index, use = place
            left = use.left(found.deltas[index])[:, 0]
            right = use.right(found.seen[index])[:, 0].to(left)
            above, beside = use.laid_out(left, right)
            yield slice(start, stop), FactoredRows(above.contiguous(), beside.contiguous())
            return
        chunk = max(1, self.memory // (2 * self.itemsize * layer.parameters))
        for first in range(0, stop - start, chunk):
            rows = slice(first, min(first + chunk, stop - start))
            formed = self.gradients.formed_layer(found, rows, layer)
            yield slice(start + rows.start, start + rows.stop), Dense(formed)

    def _factored(self, layer: Layer) -> tuple[int, Operation] | None:
        """The one place where the layer's one parameter is used, if factors are the smaller."""
        uses = [self.gradients.trace.uses.get(name, ()) for name in layer.parameter_names]
        if len(uses) != 1 or len(uses[0]) != 1:
            return None
        index, use = uses[0][0]
        plain = isinstance(use, Linear | Convolution) and use.groups == 1
        pays = use.positions * _factor_size(use) <= use.inputs * use.outputs  # inner products
        return (index, use) if plain and pays else None


def _factor_size(use: Operation) -> int:
    return use.positions * (use.inputs + use.outputs)


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
