"""Tables as untrusted data: CSV, JSON lines, Parquet and Arrow, read in a child process.

A reader returns each column as codes and different texts, so that what looks at values looks at
each of them once.
"""

import _csv
import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.core.files import once
from gradaudit.core.parts import library
from gradaudit.core.text import first_line, printable
from gradaudit.data.common.checks import (
    choose,
    choose_all,
    expect_few_cells,
    expect_names,
    quote,
)
from gradaudit.data.common.reading import read
from gradaudit.data.common.table_columns import DataColumn, with_points
from gradaudit.errors import DataError, UsageError

UTF_8 = "utf-8-sig"

_GZIP = b"\x1f\x8b"
_PARQUET, _ARROW, _STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_END = _STREAM + bytes(4)
"""End mark of an Arrow stream."""
_JSON_NAMES = frozenset({".jsonl", ".ndjson", ".json"})
_ONE_A_LINE = 'write an object a line, {"KEY": VALUE, …}'
_QUOTED = re.compile(r'"[^"]*"')

Separator = Literal[",", ";", "tab"]
_SIGNS: dict[Separator, str] = {",": ",", ";": ";", "tab": "\t"}
_CALLED: dict[Separator, str] = {",": "comma", ";": "semicolon", "tab": "tab"}

_UNNAMED = "unnamed-{}"
Cells = tuple[NDArray[np.int32], list[str]]
"""Codes of a column's cells, and the texts that they stand for."""


@dataclass(frozen=True)
class TextTable:
    """A table of text: the cells of each column, in the order of the file.

    Attributes:
        file: the file it was read from, for messages.
        cells: codes and texts of the records' cells by column.
        faults: why the cells of a column cannot be used, by column.
        decimal: sign before the decimals of numbers.
        notes: how the file was read, for the report.
        whole: columns of whole numbers by their type.
        array: numbers (records, …) of the column that was asked for as such.
    """

    file: str
    cells: Mapping[str, Cells]
    faults: Mapping[str, str] = field(default_factory=dict)
    decimal: str = "."
    notes: Mapping[str, JsonValue] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    array: NDArray[Any] | None = None

    @property
    def index(self) -> str | None:
        """Name of a first column without a name that counts the records from 0, if it is one."""
        name = next(iter(self.cells))
        codes, texts = self.cells[name]
        if name != _UNNAMED.format(1) or len(texts) != len(codes):
            return None
        return name if all(texts[code] == str(i) for i, code in enumerate(codes)) else None

    def cells_of(self, name: str) -> Cells:
        """Return the codes and texts of a column.

        Raises:
            UsageError: there is no such column.
            DataError: its cells are no numbers, texts or dates.
        """
        name = choose(name, self.cells, self.file, "column")
        if name in self.faults:
            raise DataError(f"{self.file}{self.faults[name]}")
        return self.cells[name]

    def texts(self, name: str) -> list[str]:
        """Return the cells of a column, with the errors of ``cells_of``."""
        codes, texts = self.cells_of(name)
        return [texts[code] for code in codes]

    def column(self, name: str) -> DataColumn:
        """Return the column of that name, with the errors of ``cells_of``."""
        codes, texts = self.cells_of(name)
        origin = f"{self.file}: column {quote(name)}"
        if self.decimal != ".":
            return DataColumn.of_codes(name, origin, codes, with_points(texts, origin))
        return DataColumn.of_codes(name, origin, codes, texts)

    def names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names of columns among these, which may be comma separated; each once."""
        return choose_all(names, self.cells, self.file, "column")


def read_table(
    *paths: Path,
    origin: str | None = None,
    sep: Separator | None = None,
    decimal: str = ".",
    encoding: str = UTF_8,
    array: str | None = None,
) -> TextTable:
    """Read a CSV file with a header line, JSON lines, or Parquet and Arrow files.

    The content tells the format, of JSON lines the name too; text may be compressed by gzip. A
    column without a name is called ``unnamed-1``, ``unnamed-2``, … after its place. Without ``sep``
    cells end at the sign, of comma, semicolon and tab, that the header has most of.

    Args:
        *paths: of the file, or of several of Arrow that go on one another.
        origin: where they are, for messages; the first path without it.
        sep: what stands between cells.
        decimal: sign before the decimals of numbers.
        encoding: of the text.
        array: column of numbers, or of lists of numbers of one length, to return as an array.

    Raises:
        UsageError: a file is missing or cannot be read, nobody knows the encoding, the library is
            not installed, or an option is for other files.
        DataError: it is no such file, is damaged, or holds no records.
    """
    origin = origin or str(paths[0])
    table = read(table_cells, *paths, origin=origin, sep=sep, encoding=encoding, array=array)
    cells = zip(table["names"], zip(table["codes"], table["texts"], strict=True), strict=True)
    notes: dict[str, JsonValue] = {}
    if not table.get("separator") and (sep or decimal != "."):
        raise UsageError(f"{origin}: is no CSV file; leave out sep= and decimal=")
    if table.get("separator"):
        notes = {"separator": _CALLED[table["separator"]], "encoding": encoding}
        notes |= {"decimal": _CALLED[","]} if decimal != "." else {}
        usual = {"separator": _CALLED[","], "encoding": UTF_8}
        notes = {key: note for key, note in notes.items() if usual.get(key) != note}
    return TextTable(
        origin,
        dict(cells),
        table["faults"],
        decimal,
        notes,
        frozenset(table.get("whole", ())),
        table.get("array"),
    )


def table_cells(
    *paths: Path, origin: str, sep: Separator | None, encoding: str, array: str | None
) -> dict[str, Any]:
    """Read the columns of a table, each as codes and different texts."""
    if len(paths) > 1 or head_of(paths[0]).startswith((_PARQUET, _ARROW, _STREAM)):
        return _frame_cells(paths, origin, array)
    text = _text(paths[0], encoding)
    first = text.partition("\n")[0]
    if not _JSON_NAMES.isdisjoint(paths[0].suffixes[-2:]) or first.lstrip().startswith("{"):
        return _json_cells(text, origin)
    sep = sep or _separator(first)
    return {"separator": sep, **_csv_cells(text, _SIGNS[sep], origin)}


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, which tell its format."""
    with path.open("rb") as stream:
        return stream.read(len(_ARROW))


def _text(path: Path, encoding: str) -> str:
    content = path.read_bytes()
    if content.startswith(_GZIP):
        try:
            content = gzip.decompress(content)
        except MemoryError:
            raise
        except Exception as error:  # damage shows in every way that zlib can fail
            raise DataError(f"{path}: is damaged: {error}; fetch it again") from error
    name = "UTF-8" if encoding == UTF_8 else printable(encoding, 60)
    try:
        text = content.decode(encoding)
    except UnicodeError as error:
        raise DataError(
            f"{path}: is not text in {name} ({getattr(error, 'reason', error)}); save it as UTF-8, "
            "or name its encoding (csv:FILE?encoding=latin-1 or encoding=utf-16)"
        ) from error
    except LookupError as error:
        raise UsageError(
            f"{path}: encoding={name}: Python knows no such encoding of text; name one such as "
            "latin-1, cp1252 or utf-16"
        ) from error
    if "\0" in text:
        raise DataError(
            f"{path}: holds zero bytes, as no text does; save it as UTF-8, or name its encoding "
            "(csv:FILE?encoding=utf-16-le)"
        )
    return text


def _separator(header: str) -> Separator:
    """Return the sign that a header has most of outside quotes; the comma where that is none."""
    bare = _QUOTED.sub("", header)
    counts = {name: bare.count(sign) for name, sign in _SIGNS.items()}
    return max(counts, key=counts.__getitem__)


def _csv_cells(text: str, sep: str, origin: str) -> dict[str, Any]:
    try:
        rows = csv.reader(_lines(text), delimiter=sep)
        header = next(filter(None, rows), [])
        expect_names(_named(header), origin)
        frame = pd.read_csv(_lines(text), sep=sep, dtype=object, na_filter=False, header=0)
        if (
            not isinstance(frame.index, pd.RangeIndex)
            or len(frame.columns) != len(header)
            or (frame.iloc[:, -1] == "").any()
        ):
            _expect_cells(rows, len(header), origin)
    except (csv.Error, ValueError) as error:
        if "out of memory" in str(error):  # as pandas calls it
            raise MemoryError from error
        raise DataError(
            f"{origin}: is not a CSV file ({printable(first_line(error), 200)}); quote cells that "
            "hold the separator, or name it with sep="
        ) from error
    expect_few_cells(len(frame), len(header), origin)
    if not len(frame):
        raise DataError(f"{origin}: there are no records after the header")
    cells = frame.to_numpy()
    return {"names": _named(header), **_factorised(cells.T), "faults": {}}


def _lines(text: str) -> io.StringIO:
    return io.StringIO(text, newline="")


def _named(header: Sequence[str]) -> list[str]:
    return [cell.strip() or _UNNAMED.format(place) for place, cell in enumerate(header, start=1)]


def _expect_cells(rows: _csv.Reader, width: int, origin: str) -> None:
    """Refuse a line with fewer or more cells than the header, which pandas fills up or counts."""
    for row in filter(None, rows):
        if len(row) != width:
            raise DataError(
                f"{origin}, line {rows.line_num}: {len(row)} cells where the header has {width}; "
                "quote cells that hold the separator, or name it with sep="
            )


def _factorised(columns: Iterable[Any]) -> dict[str, Any]:
    """Return the codes and the different texts of columns."""
    found = [pd.factorize(column) for column in columns]
    return {
        "codes": np.stack([codes for codes, _ in found]).astype(np.int32),
        "texts": [list(texts) for _, texts in found],
    }


def _json_cells(text: str, origin: str) -> dict[str, Any]:
    rows = {
        number: _object(line, f"{origin}, line {number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line and not line.isspace()
    }
    if not rows:
        raise DataError(f"{origin}: there are no records; {_ONE_A_LINE}")
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    expect_names(names, origin)
    expect_few_cells(len(rows), len(names), origin)
    faults: dict[str, str] = {}
    columns = []
    for name in names:
        fault = next(filter(None, (_fault(row, name, n) for n, row in rows.items())), None)
        if fault:
            faults[name] = fault
        cells = (None if fault else row[name] for row in rows.values())
        texts = ["" if value is None else str(value) for value in cells]
        columns.append(np.array(texts, dtype=object))
    return {"names": names, **_factorised(columns), "faults": faults}


def _fault(record: Mapping[str, Any], name: str, line: int) -> str | None:
    """Say why a record's value is no cell."""
    if name not in record:
        return f", line {line}: has no key {quote(name)}; write null where there is no value"
    if isinstance(record[name], (dict, list)):
        return (
            f", line {line}: key {quote(name)} holds a list or an object; write one text or number "
            "a record"
        )
    return None


def _object(line: str, origin: str) -> dict[str, Any]:
    try:
        record = json.loads(line, object_pairs_hook=once)
        if "\\ud" in line.lower():
            json.dumps(record, ensure_ascii=False).encode()  # half a pair of surrogates is no text
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or error
        raise DataError(
            f"{origin}: is no JSON object ({printable(str(reason), 100)}); {_ONE_A_LINE}"
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"{origin}: is JSON, but no object; {_ONE_A_LINE}")
    return record


def _frame_cells(paths: Sequence[Path], origin: str, array: str | None) -> dict[str, Any]:
    """Read the columns of Parquet or Arrow files, and one of them as an array."""
    pa = library("pyarrow", "parquet", origin)
    tables = [read_frame(path) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        if table.schema != tables[0].schema:
            raise DataError(f"{path}: has other columns than {paths[0]}; write both anew")
    whole = pa.concat_tables(tables)
    expect_names(whole.column_names, origin)
    expect_few_cells(len(whole), whole.num_columns, origin)
    if not len(whole):
        raise DataError(f"{origin}: there are no records")
    faults: dict[str, str] = {}
    found = []
    for name, column in zip(whole.column_names, whole.columns, strict=True):
        try:
            found.append(_column_cells(column))
        except MemoryError:
            raise
        except Exception as error:  # of a nested type, a time beyond the calendar, …
            kind, why = printable(str(column.type), 60), printable(first_line(error), 90)
            what = f"column {quote(name)} holds {kind}, which cannot be made text ({why})"
            faults[name] = f": {what}; numbers, text or dates are needed"
            found.append((np.zeros(len(whole), np.int32), [""]))
    codes, texts = zip(*found, strict=True)
    cells = {"codes": np.stack(codes), "texts": list(texts)}
    integers = [f.name for f in whole.schema if pa.types.is_integer(f.type)]
    read = {"names": whole.column_names, **cells, "faults": faults, "whole": integers}
    if array is None:
        return read
    numbers = whole[choose(array, whole.column_names, origin, "column")]
    return {**read, "array": _numbers(numbers, f"{origin}: column {quote(array)}")}


def read_frame(path: Path) -> Any:
    """Read a Parquet or Arrow file as pyarrow's table; a DataError where it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        head = head_of(path)
        if head.startswith(_PARQUET):
            with pq.ParquetFile(path, pre_buffer=False) as file:
                table = file.read(use_threads=False)
        elif head.startswith(_ARROW):
            table = pa.ipc.open_file(path).read_all()
        elif head.startswith(_STREAM):
            source = pa.BufferReader(path.read_bytes())
            table = pa.ipc.open_stream(source).read_all()
            source.seek(source.tell() - len(_END))
            if source.read() != _END:
                raise ValueError("it ends before its last rows or after")
        else:
            raise ValueError("it begins as neither does")
        table.validate(full=True)
    except MemoryError:
        raise
    except Exception as error:  # damage shows in every way that the library can fail
        raise DataError(
            f"{path}: is no sound Parquet or Arrow file ({printable(first_line(error), 200)}); "
            "fetch or write it again"
        ) from error
    return table


def _column_cells(column: Any) -> Cells:
    """Return the codes and texts of a column of numbers, truth values, text or dates."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_nested(column.type) or "binary" in str(column.type):
        raise ValueError("no single value a record")
    coded = column.combine_chunks().dictionary_encode()
    texts = ["" if value is None else str(value) for value in coded.dictionary.to_pylist()]
    codes = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return codes.astype(np.int32), [*texts, ""]


def _numbers(column: Any, origin: str) -> NDArray[Any]:
    """Return a column of numbers, or of lists of numbers of one length, as (records, …)."""
    from pyarrow import types

    shape, values = [len(column)], column.combine_chunks()
    while (
        types.is_list(values.type)
        or types.is_large_list(values.type)
        or types.is_fixed_size_list(values.type)
    ):
        lengths = set(values.value_lengths().to_pylist())
        if len(lengths) > 1 or None in lengths:
            raise DataError(
                f"{origin}: its lists differ in length; bring all to one, as by padding"
            )
        shape.append(lengths.pop())
        values = values.flatten()
    if values.null_count or not (types.is_integer(values.type) or types.is_floating(values.type)):
        raise DataError(
            f"{origin}: holds {printable(str(values.type), 60)} or missing values; lists of "
            "numbers are needed (of text, its tokens)"
        )
    return values.to_numpy(zero_copy_only=False).reshape(shape)  # type: ignore[no-any-return]
