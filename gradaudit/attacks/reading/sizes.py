"""How long each layer's update is, and what did not move."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from gradaudit.attacks.reading.base import Reading, ReadingUnit, ReadingValue, size_of
from gradaudit.sharing.named import NamedUpdate


class Sizes(Reading):
    """‖G_l‖₂ of each layer, weights and biases together, and the share of elements that moved.

    What is compared with a clipping norm: a layer longer than it was not clipped.
    """

    name: ClassVar[str] = "sizes"
    summary: ClassVar[str] = "The length of each layer's update, and how much of it moved."
    priority: ClassVar[int] = 40

    def pieces(self, update: NamedUpdate) -> Iterator[ReadingUnit]:
        """One of each layer."""
        for layer, names in update.layers().items():
            look = partial(_measured, update, layer, names)
            yield ReadingUnit(("norm", "moved_share"), layer, size_of(update, names), look)


def _measured(
    update: NamedUpdate, layer: str, names: tuple[str, ...], _share: float
) -> Iterator[ReadingValue]:
    changes = {name: update.change(name) for name in names}
    squares = sum(float(change.norm()) ** 2 for change in changes.values())
    counts = {name: int(change.count_nonzero()) for name, change in changes.items()}
    still = [name for name, count in counts.items() if not count]
    yield ReadingValue("norm", layer, squares**0.5)
    moved = sum(counts.values()) / max(1, size_of(update, names))
    yield ReadingValue("moved_share", layer, moved, details={"untouched": list(still)})
