"""Filling a document of limited size: block after block, row after row, while there is room."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LEFT_OUT = "*{:,} more rows are left out; the JSON report has them.*"
_ROOM = 100
"""Bytes kept for saying what was left out."""


@dataclass(frozen=True)
class Block:
    """Lines that stand together; ``rows`` may be cut, what opens and closes them may not.

    A block that ``needed`` rows is left out where it has none.
    """

    opening: Sequence[str]
    rows: Sequence[str] = ()
    closing: Sequence[str] = ()
    needed: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to say."""
        return not self.rows and (self.needed or not self.opening)


def filled(blocks: Sequence[Block], most: int) -> Iterator[str]:
    """The blocks as paragraphs, in at most so many bytes with an empty line behind each.

    No block takes more than half of what is left, so that each has some of its rows; those that
    are left out are counted.
    """
    left = most
    for block in blocks:
        if block.empty:
            continue
        paragraph = "\n".join(_fitting(block, (left - _ROOM) // 2))
        size = _size(paragraph) + 1
        if size <= left:
            left -= size
            yield paragraph


def _fitting(block: Block, room: int) -> list[str]:
    """The lines of a block with as many rows as there is room for."""
    used = sum(map(_size, (*block.opening, *block.closing)))
    rows: list[str] = []
    for row in block.rows:
        used += _size(row)
        if used > room:
            break
        rows.append(row)
    cut = len(block.rows) - len(rows)
    said = ["", LEFT_OUT.format(cut)] if cut else []
    return [*block.opening, *rows, *block.closing, *said]


def _size(line: str) -> int:
    return len(line.encode()) + 1
