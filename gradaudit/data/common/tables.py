"""Reading a CSV file or JSON lines, as it is or compressed by gzip, into columns of text.

Text is UTF-8, and neither a line nor a file may be without end.
"""

import _csv
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from gradaudit.core.files import expect_file, once
from gradaudit.core.text import printable
from gradaudit.data.common import checks
from gradaudit.data.common.checks import choose, choose_all, expect_few_cells, expect_names, quote
from gradaudit.data.common.table_columns import DataColumn, with_points
from gradaudit.errors import DataError, UsageError

UTF_8 = "utf-8-sig"
UNNAMED = "unnamed-1"
MAX_LINE = 4 << 20
"""Characters in a line."""
MAX_EMPTY = 100_000
"""Lines that hold nothing."""

_GZIP_MAGIC = b"\x1f\x8b"
_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})
_ONE_A_LINE = 'write an object a line, {"KEY": VALUE, …}'


@contextmanager
def opened_text(path: Path, encoding: str = UTF_8) -> Iterator[io.TextIOWrapper]:
    """The text in a file, a byte order mark passed over.

    Raises:
        UsageError: the file is missing or cannot be read, or nobody knows the encoding.
        DataError: it is damaged, is no text in that encoding, or holds too much.
    """
    path = expect_file(path)
    try:
        with path.open("rb") as plain:
            zipped = plain.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            plain.seek(0)
            unpacked = gzip.GzipFile(fileobj=plain) if zipped else plain
            packed = path.stat().st_size if zipped else None
            capped = io.BufferedReader(_CappedReader(unpacked, str(path), packed))
            with io.TextIOWrapper(capped, encoding=encoding, newline="") as stream:
                yield stream
    except UnicodeError as error:
        raise DataError(
            f"{path}: is not text in {_called(encoding)} ({getattr(error, 'reason', error)}); save "
            "it as UTF-8, or name its encoding (csv:FILE?encoding=latin-1 or encoding=utf-16)"
        ) from error
    except LookupError as error:
        raise UsageError(
            f"{path}: encoding={printable(encoding, 60)}: Python knows no such encoding of text; "
            "name one such as latin-1, cp1252 or utf-16"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: is damaged: {error}; fetch it again") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def _called(encoding: str) -> str:
    return "UTF-8" if encoding == UTF_8 else printable(encoding, 60)


def lines_of(stream: io.TextIOBase, origin: str) -> Iterator[str]:
    """The lines of a text file; a DataError where one, or their number, has no end."""
    empty = 0
    while line := stream.readline(MAX_LINE):
        empty += line.isspace()
        if empty > MAX_EMPTY:
            raise DataError(f"{origin}: has over {MAX_EMPTY} empty lines; is it a table?")
        if "\0" in line:
            raise DataError(
                f"{origin}: holds zero bytes, as no text does; save it as UTF-8, or name its "
                "encoding (csv:FILE?encoding=utf-16-le)"
            )
        if len(line) == MAX_LINE:
            raise DataError(f"{origin}: has a line of over {MAX_LINE} characters; is it a table?")
        yield line


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


def is_json(path: Path, first: str) -> bool:
    """Whether a file is called as JSON is, compressed or not, or its first line is an object."""
    if not _SUFFIXES.isdisjoint(path.suffixes[-2:]):
        return True
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


class JsonCells(Mapping[str, Sequence[str]]):
    """The values of each key as text, in the order of the lines; empty where one is null.

    Looking up a key raises a DataError that names the first line that lacks it, or that has a list
    or an object under it.
    """

    def __init__(self, lines: Iterable[str], origin: str) -> None:
        """Read the lines, of which empty ones are passed over.

        Raises:
            DataError: one is no JSON object, or has a key twice; there are none, or too many.
        """
        self._origin = origin
        self._lines: list[int] = []
        self._cells: dict[str, list[str | None]] = {}
        self._nested: dict[str, int] = {}
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                self._add(number, _object(line, f"{origin}, line {number}"))
        if not self._lines:
            raise DataError(f"{origin}: there are no records; {_ONE_A_LINE}")
        expect_names(list(self._cells), origin)
        for cells in self._cells.values():
            cells += [None] * (len(self._lines) - len(cells))

    def _add(self, number: int, record: Mapping[str, Any]) -> None:
        for key, value in record.items():
            cells = self._cells.setdefault(key, [])
            cells += [None] * (len(self._lines) - len(cells))
            if isinstance(value, (dict, list)):
                self._nested.setdefault(key, number)
            cells.append("" if value is None else str(value))
        self._lines.append(number)
        expect_few_cells(len(self._lines), len(self._cells), self._origin)

    def __getitem__(self, key: str) -> Sequence[str]:
        cells = self._cells[key]
        if key in self._nested:
            raise DataError(
                f"{self._origin}, line {self._nested[key]}: key {quote(key)} holds a list or an "
                "object; write one text or number a record"
            )
        if None in cells:
            raise DataError(
                f"{self._origin}, line {self._lines[cells.index(None)]}: has no key {quote(key)}; "
                "write null where there is no value"
            )
        return [cell for cell in cells if cell is not None]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, key: object) -> bool:
        return key in self._cells


def _object(line: str, origin: str) -> dict[str, Any]:
    try:
        record = json.loads(line, object_pairs_hook=once)
        if "\\ud" in line.lower():
            json.dumps(
                record, ensure_ascii=False
            ).encode()  # half of a pair of surrogates is no text
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or error
        raise DataError(
            f"{origin}: is no JSON object ({printable(str(reason), 100)}); {_ONE_A_LINE}"
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"{origin}: is JSON, but no object; {_ONE_A_LINE}")
    return record


Separator = Literal[",", ";", "tab"]

_SIGNS: dict[Separator, str] = {",": ",", ";": ";", "tab": "\t"}
_CALLED: dict[Separator, str] = {",": "comma", ";": "semicolon", "tab": "tab"}
_QUOTED = re.compile(r'"[^"]*"')


@dataclass(frozen=True)
class TextTable:
    """A table of text: the cells of each column, in the order of the file.

    Attributes:
        file: the file it was read from, for messages.
        cells: the records' cells by column.
        decimal: sign before the decimals of numbers.
        notes: how the file was read, for the report.
    """

    file: str
    cells: Mapping[str, Sequence[str]]
    decimal: str = "."
    notes: Mapping[str, JsonValue] = field(default_factory=dict)

    def column(self, name: str) -> DataColumn:
        """The column of that name; a UsageError where there is none."""
        name = choose(name, self.cells, self.file, "column")
        origin = f"{self.file}: column {quote(name)}"
        cells = self.cells[name]
        if self.decimal != ".":
            cells = with_points(cells, origin)
        return DataColumn.of_text(name, origin, cells)

    def column_if(self, name: str | None) -> DataColumn | None:
        """The column of that name, or None without a name."""
        return None if name is None else self.column(name)

    def names(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names of columns among these, which may be comma separated; each once."""
        return choose_all(names, self.cells, self.file, "column")

    def columns(self, names: Iterable[str]) -> tuple[DataColumn, ...]:
        """The columns of these names, as ``names`` reads them."""
        return tuple(map(self.column, self.names(names)))


def read_table(
    path: Path, sep: Separator | None = None, decimal: str = ".", encoding: str = UTF_8
) -> TextTable:
    """Read a CSV file with a header line, or JSON lines; plain or compressed by gzip.

    A column without a name is called ``unnamed-1``, ``unnamed-2``, … after its place; a byte
    order mark and empty lines are passed over. A file is of JSON lines where it is called so, or
    its first line is a JSON object. Without ``sep`` cells end at the sign, of comma, semicolon and
    tab, that the header has most of.

    Raises:
        UsageError: the file is missing or cannot be read, or nobody knows the encoding.
        DataError: it is no CSV file in that encoding, holds no records, is too large, has a line of
            another length than the header, or a column name twice; or as ``JsonCells``.
    """
    origin = str(path)
    with opened_text(path, encoding) as stream:
        lines = lines_of(stream, origin)
        first = next(lines, "")
        every = chain([first], lines)
        if is_json(path, first):
            return TextTable(origin, JsonCells(every, origin))
        sep = sep or _separator(first)
        notes: dict[str, JsonValue] = {} if sep == "," else {"separator": _CALLED[sep]}
        if decimal != ".":
            notes["decimal"] = _CALLED[","]
        if encoding != UTF_8:
            notes["encoding"] = encoding
        return TextTable(origin, _csv_cells(every, sep, origin), decimal, notes)


def _separator(header: str) -> Separator:
    """The sign that a header has most of outside quotes; the comma where that is none."""
    bare = _QUOTED.sub("", header)
    counts = {name: bare.count(sign) for name, sign in _SIGNS.items()}
    return max(counts, key=counts.__getitem__)


def _csv_cells(lines: Iterable[str], sep: Separator, origin: str) -> dict[str, Sequence[str]]:
    try:
        reader = csv.reader(lines, delimiter=_SIGNS[sep], strict=True)
        names = next(reader, [])
        first = next(filter(None, reader), [])
        indexed = [""] if names and len(first) == len(names) + 1 else []  # as R and pandas write
        header = _header([*indexed, *names], origin)
        rows = list(_rows(chain([first] if first else [], reader), len(header), reader, origin))
    except csv.Error as error:
        raise DataError(f"{origin}: is not a CSV file: {error}") from error
    if not rows:
        raise DataError(f"{origin}: there are no records after the header")
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def _header(cells: Sequence[str], origin: str) -> list[str]:
    names = [cell.strip() or f"unnamed-{place}" for place, cell in enumerate(cells, start=1)]
    expect_names(names, origin)
    return names


def _rows(
    lines: Iterable[list[str]], width: int, reader: _csv.Reader, origin: str
) -> Iterator[list[str]]:
    for number, row in enumerate(filter(None, lines), start=1):
        expect_few_cells(number, width, origin)
        if len(row) != width:
            raise DataError(
                f"{origin}, line {reader.line_num}: {len(row)} cells where the header has {width}; "
                "quote cells that hold the separator, or name it with sep="
            )
        yield row
