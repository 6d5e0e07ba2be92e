"""What gives rows of gradients layer by layer, piece by piece, as often as it is asked.

The gradients of single records come in the form that takes the least memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from gradaudit.gradients.operations import Convolution, Linear, Operation
from gradaudit.gradients.per_sample import PerSampleGradients
from gradaudit.gradients.trace import Gradients
from gradaudit.models.target import Layer
from gradaudit.sharing.rows import Dense, Factors, GradientRows

T = TypeVar("T")

Piece = tuple[slice, Layer, GradientRows]
"""Rows of one layer, and where they lie among all."""


@dataclass(frozen=True)
class RecordRows:
    """One row a record.

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
            found = engine.run(start, stop)
            for layer in layers:
                for where, rows in self._of_batch(found, layer, start, stop):
                    if layer.name in self.factors:
                        rows = rows.scaled(self.factors[layer.name][where])
                    yield where, layer, rows

    def bytes_of(self, layer: Layer) -> int:
        """Bytes of one record's row."""
        size = self.itemsize
        use = self._factored(layer)
        return size * (layer.parameters if use is None else _factor_size(use[1]))

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
            yield slice(start, stop), Factors(left.contiguous(), right.contiguous())
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
        return (index, use) if plain and _pays(use) else None


def _factor_size(use: Operation) -> int:
    return use.positions * (use.inputs + use.outputs)


def _pays(use: Operation) -> bool:
    """Whether inner products of factors cost no more than those of formed gradients."""
    return use.positions * _factor_size(use) <= use.inputs * use.outputs


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
