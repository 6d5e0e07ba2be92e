"""Tokens that a table gives away: its rows that moved."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from gradaudit.attacks.reading.base import Reading, ReadingUnit, ReadingValue, size_of, untold
from gradaudit.sharing.named import NamedUpdate

_NO_TABLE = "no table: a weight of two dimensions without bias, of which most rows stay as they are"
_MOST = 0.5
"""The share of a table's rows that moved, from which on what moved it is no look-up."""


class MovedRows(Reading):
    """Tokens that were looked up in an embedding table: its nonzero gradient rows.

    The gradient of an embedding is nothing but at what was looked up (Melis et al. 2019, section
    4.1). A table that is the head as well (tied) has a gradient everywhere, and is no such table.
    """

    name: ClassVar[str] = "tokens"
    summary: ClassVar[str] = "Tokens of the batch, from the rows of a table that moved."
    priority: ClassVar[int] = 30

    def pieces(self, update: NamedUpdate) -> Iterator[ReadingUnit]:
        """Make one unit of work for each layer."""
        for layer, names in update.layers().items():
            if len(names) == 1 and update.after[names[0]].dim() == 2:
                look = partial(_moved, update, layer, names[0])
                yield ReadingUnit(("tokens_named",), layer, size_of(update, names), look)
            else:
                yield untold("tokens_named", layer, _NO_TABLE)


def _moved(update: NamedUpdate, layer: str, name: str, _share: float) -> Iterator[ReadingValue]:
    moved = update.change(name).any(dim=1)
    count = int(moved.sum())
    if not 0 < count < _MOST * len(moved):
        yield ReadingValue("tokens_named", layer, None, _NO_TABLE)
        return
    yield ReadingValue("tokens_named", layer, float(count), details={"of_tokens": len(moved)})
