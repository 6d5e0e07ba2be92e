"""Readings of an update that need neither the model nor data.

Each reading is a file. All of them together cost about as much as a few passes over the update.
"""

from collections.abc import Iterator

from gradaudit.attacks.reading.base import Reading, ReadingUnit, ReadingValue
from gradaudit.core.parts import discover
from gradaudit.sharing.named import NamedUpdate

__all__ = ["Reading", "ReadingUnit", "ReadingValue", "reading_units", "readings"]


def readings() -> dict[str, type[Reading]]:
    """Every reading by its name."""
    return discover("gradaudit.attacks.reading", Reading)


def reading_units(update: NamedUpdate) -> Iterator[ReadingUnit]:
    """All units of reading of an update, the most informative for their time first."""
    for reading in sorted(readings().values(), key=lambda kind: kind.priority):
        yield from reading().pieces(update)
