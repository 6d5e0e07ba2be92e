"""Reading a CSV file into columns."""

import _csv
import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradaudit.data.common import checks
from gradaudit.data.common.checks import choose, choose_all, quote
from gradaudit.data.common.columns import DataColumn
from gradaudit.errors import DataError, UsageError
from gradaudit.files import expect_file

Delimiter = Literal["comma", "semicolon", "tab"]

_DELIMITERS: dict[Delimiter, str] = {"comma": ",", "semicolon": ";", "tab": "\t"}
MAX_LINE = 4 << 20
"""Characters in a line."""
MAX_COLUMNS = 100_000
MAX_CELLS = 20_000_000
"""Records times columns; as text in memory a cell takes 8 to some 100 bytes."""
MAX_EMPTY = 100_000
"""Lines that hold nothing."""

_GZIP_MAGIC = b"\x1f\x8b"


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
    """Read a CSV file, plain or compressed by gzip, with a header line.

    A column without a name is called ``unnamed-1``, ``unnamed-2``, … after its place; a byte
    order mark and empty lines are passed over.

    Raises:
        UsageError: the file is missing or cannot be read.
        DataError: it is no CSV file in UTF-8, holds no records, is too large, has a line of
            another length than the header, or a column name twice.
    """
    origin = str(path)
    with _text(path) as stream:
        lines = _lines(stream, origin)
        reader = csv.reader(lines, delimiter=_DELIMITERS[delimiter], strict=True)
        header = _header(next(reader, []), origin)
        rows = list(_rows(reader, len(header), origin))
    if not rows:
        raise DataError(f"{origin}: there are no records after the header")
    return TextTable(origin, dict(zip(header, zip(*rows, strict=True), strict=True)))


@contextmanager
def _text(path: Path) -> Iterator[io.TextIOWrapper]:
    path = expect_file(path)
    try:
        with path.open("rb") as plain:
            zipped = plain.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            plain.seek(0)
            unpacked = gzip.GzipFile(fileobj=plain) if zipped else plain
            packed = path.stat().st_size if zipped else None
            capped = io.BufferedReader(_CappedReader(unpacked, str(path), packed))
            with io.TextIOWrapper(capped, encoding="utf-8-sig", newline="") as stream:
                yield stream
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not text in UTF-8 ({error.reason}); save it as UTF-8"
        ) from error
    except csv.Error as error:
        raise DataError(f"{path}: is not a CSV file: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: is damaged: {error}; fetch it again") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


class _CappedReader(io.RawIOBase):
    """A binary stream that refuses to yield more than a text file may hold.

    One that unpacks a file of ``packed`` bytes may not yield more than text can be compressed to.
    """

    def __init__(self, stream: Any, origin: str, packed: int | None) -> None:
        grown = checks.MAX_TEXT_BYTES if packed is None else checks.unpacked_limit(packed)
        self._stream = stream
        self._most = self._left = min(checks.MAX_TEXT_BYTES, grown)
        self._origin = origin
        self._remedy = "use fewer records" if packed is None else "unpack it first"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._stream.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise DataError(
                f"{self._origin}: holds more than {self._most >> 20} MiB of text unpacked; "
                f"{self._remedy}"
            )
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def _header(cells: Sequence[str], origin: str) -> list[str]:
    names = [cell.strip() or f"unnamed-{place}" for place, cell in enumerate(cells, start=1)]
    expect_names(names, origin)
    return names


def expect_names(names: Sequence[str], origin: str) -> None:
    """Refuse too many columns, none, or two of one name, with a DataError."""
    if len(names) > MAX_COLUMNS:
        raise DataError(
            f"{origin}: has {len(names)} columns, over the limit of {MAX_COLUMNS}; keep fewer, or "
            "store them in a NumPy archive"
        )
    if not names:
        raise DataError(f"{origin}: is empty; a header line and records are needed")
    places: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        if places.setdefault(name, place) != place:
            raise DataError(
                f"{origin}: columns {places[name]} and {place} are both called {quote(name)}; "
                "rename one"
            )


def expect_few_cells(rows: int, columns: int, origin: str) -> None:
    """Refuse tables of over 20 million cells, with a DataError."""
    if rows * columns > MAX_CELLS:
        raise DataError(
            f"{origin}: has over {MAX_CELLS} cells ({columns} columns); use fewer records, or "
            "store them in a NumPy archive"
        )


def _lines(stream: io.TextIOBase, origin: str) -> Iterator[str]:
    """The lines, none of them without end."""
    empty = 0
    while line := stream.readline(MAX_LINE):
        empty += line.isspace()
        if empty > MAX_EMPTY:
            raise DataError(f"{origin}: has over {MAX_EMPTY} empty lines; is it a table?")
        if "\0" in line:
            raise DataError(f"{origin}: holds zero bytes, as no text does; save it as UTF-8")
        if len(line) == MAX_LINE:
            raise DataError(f"{origin}: has a line of over {MAX_LINE} characters; is it a table?")
        yield line


def _rows(reader: _csv.Reader, width: int, origin: str) -> Iterator[list[str]]:
    for number, row in enumerate(filter(None, reader), start=1):
        expect_few_cells(number, width, origin)
        if len(row) != width:
            raise DataError(
                f"{origin}, line {reader.line_num}: {len(row)} cells where the header has {width}; "
                "quote cells that hold the delimiter, or say delimiter=semicolon or delimiter=tab"
            )
        yield row
