"""Norms of the layers' updates, and the shares of elements that changed."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

from gradaudit.attacks.reading.base import Reading, ReadingUnit, ReadingValue, size_of
from gradaudit.sharing.named import NamedUpdate


class Sizes(Reading):
    """‖G_l‖₂ of each layer, weights and biases together, and the share of elements that moved.

    What is compared with a clipping norm: a layer longer than it was not clipped. Of the whole
    update the share that moved: where it is zero, training did nothing and no one may have noticed,
    as where an optimizer holds other parameters than the model (Opacus around an adapter of PEFT).
    """

    name: ClassVar[str] = "sizes"
    summary: ClassVar[str] = "The length of each layer's update, and how much of it moved."
    priority: ClassVar[int] = 40

    def pieces(self, update: NamedUpdate) -> Iterator[ReadingUnit]:
        """Make one unit of work for each layer."""
        for layer, names in update.layers().items():
            look = partial(_measured, update, layer, names)
            yield ReadingUnit(("norm", "moved_share"), layer, size_of(update, names), look)
        every = [name for names in update.layers().values() for name in names]
        elements = sum(update.change(name).numel() for name in every)
        look = partial(_moved_at_all, update, every, elements)
        yield ReadingUnit(("update_moved_share",), None, elements, look)


def _moved_at_all(
    update: NamedUpdate, names: Sequence[str], elements: int, _share: float
) -> Iterator[ReadingValue]:
    moved = sum(int(update.change(name).count_nonzero()) for name in names)
    yield ReadingValue("update_moved_share", None, moved / max(1, elements))


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
