"""What gives rows of gradients layer by layer, piece by piece, as often as it is asked."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gradaudit.models.target import Layer
from gradaudit.sharing.rows import Rows

Piece = tuple[slice, Layer, Rows]
"""Rows of one layer, and where they lie among all."""


class Stream(Protocol):
    """Gradients of layers, one row a record or an update."""

    def __len__(self) -> int: ...

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""

    def pieces(self, layers: Iterable[Layer]) -> Iterator[Piece]:
        """The rows of these layers, in order of the rows; the same ones every time."""

    def bytes_of(self, layer: Layer) -> int:
        """Bytes of one row."""

    def factored(self, layer: Layer) -> bool:
        """Whether a layer's rows come as ``Factors``."""


@dataclass(frozen=True)
class Scaled:
    """The rows of another stream, each times its factor.

    Attributes:
        rows: the other stream.
        factors: (rows,) by layer; a layer without them is left as it is.
    """

    rows: Stream
    factors: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def itemsize(self) -> int:
        """As the other stream."""
        return self.rows.itemsize

    def pieces(self, layers: Iterable[Layer]) -> Iterator[Piece]:
        """The rows times their factors."""
        for where, layer, rows in self.rows.pieces(layers):
            if layer.name in self.factors:
                rows = rows.scaled(self.factors[layer.name][where])
            yield where, layer, rows

    def bytes_of(self, layer: Layer) -> int:
        """As the other stream."""
        return self.rows.bytes_of(layer)

    def factored(self, layer: Layer) -> bool:
        """As the other stream."""
        return self.rows.factored(layer)


def collected(stream: Stream, layers: Iterable[Layer]) -> dict[str, Rows]:
    """All rows of these layers in memory, by name."""
    parts: dict[str, list[Rows]] = {}
    for _, layer, rows in stream.pieces(layers):
        parts.setdefault(layer.name, []).append(rows)
    return {name: type(rows[0]).joined(rows) for name, rows in parts.items()}
