"""Arrays that are shared beside the update: buffers, integers and scalars."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch
from pydantic import JsonValue

from gradaudit.attacks.reading.base import Reading, ReadingUnit, ReadingValue
from gradaudit.sharing.named import NamedUpdate


class UndefendedArrays(Reading):
    """Arrays that leave though no defense of updates acts on them.

    Buffers of BatchNorm are means and variances over the records themselves; whole numbers and
    single numbers are what filters of federations pass over.
    """

    name: ClassVar[str] = "beside"
    summary: ClassVar[str] = "Buffers, whole and single numbers that leave beside the update."
    priority: ClassVar[int] = 35

    def pieces(self, update: NamedUpdate) -> Iterator[ReadingUnit]:
        """Make a single unit of work."""
        elements = sum(array.numel() for array in update.beside.values())
        yield ReadingUnit(("beside",), None, elements, partial(_moved, update))


def _moved(update: NamedUpdate, _share: float) -> Iterator[ReadingValue]:
    moved = [name for name in update.beside if _has_moved(update, name)]
    details: dict[str, JsonValue] = {
        "arrays": [f"{name} ({update.apart[name]})" for name in moved],
        "of_arrays": len(update.beside),
        "kept": list(update.hidden),
        "kind": update.kind,
    }
    yield ReadingValue("beside", None, float(len(moved)), details=details)


def _has_moved(update: NamedUpdate, name: str) -> bool:
    left = update.beside[name]
    if update.kind == "weights" and name in update.before:
        return not torch.equal(left, update.before[name])
    return bool(left.any())
