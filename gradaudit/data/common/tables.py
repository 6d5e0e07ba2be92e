"""Reading a CSV file, or JSON lines, into columns."""

import _csv
import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from gradaudit.data.common.checks import (
    choose,
    choose_all,
    expect_few_cells,
    expect_names,
    quote,
)
from gradaudit.data.common.columns import DataColumn
from gradaudit.data.common.json_lines import JsonCells, is_json
from gradaudit.data.common.text_lines import lines_of, opened_text
from gradaudit.errors import DataError

Delimiter = Literal["comma", "semicolon", "tab"]

_DELIMITERS: dict[Delimiter, str] = {"comma": ",", "semicolon": ";", "tab": "\t"}


@dataclass(frozen=True)
class TextTable:
    """A table of text: the cells of each column, in the order of the file.

    Attributes:
        file: the file it was read from, for messages.
        cells: the records' cells by column.
    """

    file: str
    cells: Mapping[str, Sequence[str]]

    def column(self, name: str) -> DataColumn:
        """The column of that name; a UsageError where there is none."""
        name = choose(name, self.cells, self.file, "column")
        return DataColumn.of_text(name, f"{self.file}: column {quote(name)}", self.cells[name])

    def column_if(self, name: str | None) -> DataColumn | None:
        """The column of that name, or None without a name."""
        return None if name is None else self.column(name)

    def names(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names of columns among these, which may be comma separated; each once."""
        return choose_all(names, self.cells, self.file, "column")

    def columns(self, names: Iterable[str]) -> tuple[DataColumn, ...]:
        """The columns of these names, as ``names`` reads them."""
        return tuple(map(self.column, self.names(names)))


def read_table(path: Path, delimiter: Delimiter = "comma") -> TextTable:
    """Read a CSV file with a header line, or JSON lines; plain or compressed by gzip.

    A column without a name is called ``unnamed-1``, ``unnamed-2``, … after its place; a byte
    order mark and empty lines are passed over. A file is of JSON lines where it is called so, or
    its first line is a JSON object.

    Raises:
        UsageError: the file is missing or cannot be read.
        DataError: it is no CSV file in UTF-8, holds no records, is too large, has a line of
            another length than the header, or a column name twice; or as ``JsonCells``.
    """
    origin = str(path)
    with opened_text(path) as stream:
        lines = lines_of(stream, origin)
        first = next(lines, "")
        every = chain([first], lines)
        if is_json(path, first):
            return TextTable(origin, JsonCells(every, origin))
        return TextTable(origin, _csv_cells(every, delimiter, origin))


def _csv_cells(lines: Iterable[str], delimiter: Delimiter, origin: str) -> dict[str, Sequence[str]]:
    try:
        reader = csv.reader(lines, delimiter=_DELIMITERS[delimiter], strict=True)
        header = _header(next(reader, []), origin)
        rows = list(_rows(reader, len(header), origin))
    except csv.Error as error:
        raise DataError(f"{origin}: is not a CSV file: {error}") from error
    if not rows:
        raise DataError(f"{origin}: there are no records after the header")
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def _header(cells: Sequence[str], origin: str) -> list[str]:
    names = [cell.strip() or f"unnamed-{place}" for place, cell in enumerate(cells, start=1)]
    expect_names(names, origin)
    return names


def _rows(reader: _csv.Reader, width: int, origin: str) -> Iterator[list[str]]:
    for number, row in enumerate(filter(None, reader), start=1):
        expect_few_cells(number, width, origin)
        if len(row) != width:
            raise DataError(
                f"{origin}, line {reader.line_num}: {len(row)} cells where the header has {width}; "
                "quote cells that hold the delimiter, or say delimiter=semicolon or delimiter=tab"
            )
        yield row
