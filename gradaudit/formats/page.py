"""Lays out text on a console, in its encoding: grids in bands, cards, paragraphs.

Nothing is ever cut or folded, and no text is more than text.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradaudit.core.text import printable
from gradaudit.judging import Word
from gradaudit.judging.risk import Level

GAP = 2
LEAST_WIDTH = 20
STYLES: dict[Level, str] = {
    "high": "bold red",
    "medium": "yellow",
    "low": "green",
    "unknown": "dim",
    "not tested": "dim",
}
OUTCOMES: dict[Word, str] = {
    "passed": "bold green",
    "failed": "bold red",
    "undecided": "bold yellow",
    "measured": "bold",
}
_PLAIN_CHARACTERS = str.maketrans(
    {"–": "-", "─": "-", "…": "...", "²": "2", "×": "x", "→": "->", "≤": "<=", "≥": ">="}
)


@dataclass(frozen=True)
class Column:
    """A column of a grid: a heading of one or more lines and a cell for each row."""

    heading: str
    cells: Sequence[Text]
    right: bool = False

    @property
    def width(self) -> int:
        """Width of the widest line, in terminal cells."""
        lines = [*self.heading.split("\n"), *(cell.plain for cell in self.cells)]
        return max(map(cell_len, lines))


def grid(keys: Sequence[Column], others: Sequence[Column], width: int, rule: str) -> Iterator[Text]:
    """Yields the lines of a table whose first columns, the keys, are never cut.

    Where the columns do not fit side by side they are shown in bands, each with the keys; where
    not even one fits beside them, every row becomes a card.
    """
    taken = sum(key.width + GAP for key in keys)
    if others and taken + max(column.width for column in others) > width:
        yield from _cards(keys, others)
        return
    for i, band in enumerate(_bands(others, width - taken + GAP)):
        if i:
            yield Text()
        yield from _band([*keys, *band], rule)


def _bands(columns: Sequence[Column], width: int) -> list[list[Column]]:
    bands: list[list[Column]] = [[]]
    room = width
    for column in columns:
        if bands[-1] and column.width + GAP > room:
            bands.append([])
            room = width
        bands[-1].append(column)
        room -= column.width + GAP
    return bands


def _band(columns: Sequence[Column], rule: str) -> Iterator[Text]:
    depth = max(column.heading.count("\n") for column in columns) + 1
    headings = [column.heading.split("\n") for column in columns]
    padded = [[""] * (depth - len(lines)) + lines for lines in headings]
    for line in range(depth):
        yield _row(columns, [Text(lines[line], "bold") for lines in padded])
    yield _row(columns, [Text(rule * column.width, "dim") for column in columns])
    for cells in zip(*(column.cells for column in columns), strict=True):
        yield _row(columns, cells)


def _row(columns: Sequence[Column], cells: Sequence[Text]) -> Text:
    line = Text()
    for i, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        pad = " " * (column.width - cell_len(cell.plain))
        line.append(" " * GAP if i else "")
        line.append_text(Text.assemble(pad, cell) if column.right else Text.assemble(cell, pad))
    line.rstrip()
    return line


def _cards(keys: Sequence[Column], others: Sequence[Column]) -> Iterator[Text]:
    names = [column.heading.replace("\n", ".") for column in others]
    label = max(map(cell_len, names))
    for i in range(len(keys[0].cells)):
        for key in keys:
            yield Text(key.cells[i].plain, "bold")
        for heading, column in zip(names, others, strict=True):
            if column.cells[i].plain:
                pad = " " * (label - cell_len(heading) + GAP)
                yield Text.assemble("  ", heading, pad, column.cells[i])


class Page:
    """Formats lines for one console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(console.width, LEAST_WIDTH)

    def print(self, lines: Iterable[Text]) -> None:
        """Print lines as they are; the terminal wraps long ones."""
        for line in lines:
            self.console.print(line, soft_wrap=True, highlight=False)

    def prose(
        self, text: str, first: str = "", rest: str | None = None, style: str = ""
    ) -> Iterator[Text]:
        """Yields the lines of a paragraph; a word longer than a line is kept whole.

        The first line begins with ``first``, the others with ``rest``, or as the first without it.
        """
        for line in textwrap.wrap(
            self.safe(text),
            width=self.width,
            initial_indent=first,
            subsequent_indent=first if rest is None else rest,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            yield Text(line, style)

    def text(self, text: str, style: str = "") -> Text:
        """Returns a text on one line, without control characters."""
        return Text(self.safe(text), style)

    @property
    def rule(self) -> str:
        """The character that underlines headings."""
        return self.safe("─")

    def safe(self, text: str) -> str:
        """Returns the text without control characters and markup, in the console's encoding."""
        text = printable(text, limit=None)
        encoding = self.console.encoding
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            plain = text.translate(_PLAIN_CHARACTERS)
            return plain.encode(encoding, "backslashreplace").decode(encoding)
        return text
