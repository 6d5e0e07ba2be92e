"""Reading Parquet and Arrow files as untrusted data, column by column.

What a file declares is looked at before anything is unpacked: rows times columns, and bytes against
those of the file. Columns of text keep each value once, so that none unpacks by repeating.
Compressed Arrow, whose buffers unpack to any size, is refused; Parquet says sizes beforehand.

Whether an Arrow message's buffers are compressed is read from its header, a flatbuffer. Source: the
Apache Arrow columnar format, Message.fbs: Message(version, header_type, header, …) with a
RecordBatch(length, nodes, buffers, compression) or a DictionaryBatch(id, data: RecordBatch, …).
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit.core.files import expect_file
from gradaudit.core.parts import library
from gradaudit.core.text import first_line, printable
from gradaudit.data.common.checks import (
    choose,
    expect_few_cells,
    expect_names,
    expect_no_bomb,
    quote,
    unpacked_limit,
)
from gradaudit.data.common.tables import TextTable
from gradaudit.errors import DataError, GradauditError, UsageError

_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_DATA, _COMPRESSION = 1, 3
_PARQUET, _ARROW, _STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_END = _STREAM + bytes(4)
_ARROW_HEAD = 8
_ROWS = 1 << 14
_THRIFT = 16 << 20
_VALUE = 8
"""Bytes of a number, of which one list may hold any number in little space."""


def is_compressed(metadata: bytes) -> bool:
    """Whether a message is a batch whose buffers are compressed.

    Raises:
        struct.error: the header is cut short.
    """
    message = _offset(metadata, 0)
    kind = _field(metadata, message, _HEADER_TYPE)
    header = _field(metadata, message, _HEADER)
    if kind is None or header is None or metadata[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return False
    batch = _offset(metadata, header)
    if metadata[kind] == _DICTIONARY_BATCH:
        data = _field(metadata, batch, _DATA)
        if data is None:
            return False
        batch = _offset(metadata, data)
    return _field(metadata, batch, _COMPRESSION) is not None


def _offset(data: bytes, place: int) -> int:
    """Returns the offset of the table that a place points to."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Returns the offset of a table's field; None where the table lacks it."""
    entries = table - int(struct.unpack_from("<i", data, table)[0])
    if entries < 0:
        raise struct.error("a table without entries")
    place = 4 + 2 * number
    if place >= struct.unpack_from("<H", data, entries)[0]:
        return None
    offset = int(struct.unpack_from("<H", data, entries + place)[0])
    return table + offset if offset else None


@dataclass(frozen=True)
class Frame:
    """The columns of a file, in Arrow's memory.

    Attributes:
        origin: the file, for messages.
        schema: names and types of its columns.
        kinds: the library's predicates of types.
        batches: its rows.
        names: what whole numbers stand for, by column.
    """

    origin: str
    schema: Any
    kinds: Any
    batches: Sequence[Any]
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Number of each column by its name; the library looks names up one after the other."""
        return {name: place for place, name in enumerate(self.schema.names)}

    def chunks(self, name: str) -> list[Any]:
        """A column, in pieces; a UsageError where there is none."""
        place = self.places[choose(name, self.places, self.origin, "column")]
        return [batch.column(place) for batch in self.batches]

    def table(self) -> TextTable:
        """The columns as text, as a CSV file has them; made when they are asked for."""
        return TextTable(self.origin, _Cells(self))

    def array(self, name: str) -> NDArray[Any]:
        """A column of numbers, or of lists of numbers that are all of one length.

        Raises:
            UsageError: there is no such column.
            DataError: it holds other values, missing ones, or lists that differ in length.
        """
        origin = f"{self.origin}: column {quote(name)}"
        return np.concatenate([_numbers(chunk, self.kinds, origin) for chunk in self.chunks(name)])

    def largest(self, name: str) -> int:
        """The largest number of a column of whole ones that are not below 0; else −1."""
        if not self.kinds.is_integer(self.schema.field(name).type):
            return -1
        array = self.array(name)
        return int(array.max()) if array.min() >= 0 else -1

    def cells(self, name: str) -> list[str]:
        """A column as text, empty where there is none; a DataError where it holds more."""
        kind = self.schema.field(name).type
        if not _is_plain(self.kinds, kind):
            raise DataError(
                f"{self.origin}: column {quote(name)} holds {printable(str(kind), 60)}; numbers, "
                "text or dates are needed; write it as such"
            )
        once: dict[str, str] = {}  # chunks may share a dictionary of long values
        cells = chain.from_iterable(map(_texts, self.chunks(name)))
        try:
            texts = [once.setdefault(text, text) for text in cells]
        except Exception as error:  # of a time beyond the calendar, or of a zone that nobody knows
            what = f"{printable(str(kind), 60)} cannot be read ({printable(first_line(error), 90)})"
            raise DataError(
                f"{self.origin}: column {quote(name)}: {what}; write it as text"
            ) from error
        names = {str(code): label for code, label in enumerate(self.names.get(name, ()))}
        return [names.get(text, text) for text in texts] if names else texts


class _Cells(Mapping[str, Sequence[str]]):
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def __getitem__(self, name: str) -> Sequence[str]:
        return self._frame.cells(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame.places)

    def __len__(self) -> int:
        return len(self._frame.places)

    def __contains__(self, name: object) -> bool:
        return name in self._frame.places


def _numbers(chunk: Any, kinds: Any, origin: str) -> NDArray[Any]:
    """A piece of a column as an array (records, …)."""
    shape = [len(chunk)]
    lists = kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list
    while any(is_list(chunk.type) for is_list in lists):
        lengths = set(chunk.value_lengths().to_pylist())
        if len(lengths) > 1 or None in lengths:
            raise DataError(
                f"{origin}: its lists differ in length; bring all to one, as by padding"
            )
        shape.append(lengths.pop() if lengths else 0)
        chunk = chunk.flatten()
    if chunk.null_count or not (kinds.is_integer(chunk.type) or kinds.is_floating(chunk.type)):
        raise DataError(
            f"{origin}: holds {printable(str(chunk.type), 60)} or missing values; lists of numbers "
            "are needed (of text, its tokens)"
        )
    return chunk.to_numpy(zero_copy_only=False).reshape(shape)  # type: ignore[no-any-return]


def _is_plain(kinds: Any, kind: Any) -> bool:
    """Whether values are numbers, truth values, text or dates, that stand in the file as such."""
    if kinds.is_dictionary(kind):
        return _is_plain(kinds, kind.value_type)
    plain = (
        *(kinds.is_null, kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_decimal),
        *(kinds.is_temporal, kinds.is_string, kinds.is_large_string),
    )
    return any(is_kind(kind) for is_kind in plain)


def _texts(chunk: Any) -> Iterator[str]:
    """The values as text, empty where there is none; a value of a dictionary is made once."""
    if hasattr(chunk, "dictionary"):
        places = chunk.indices.to_pylist()
        known = {place: _text(chunk.dictionary[place].as_py()) for place in {*places} - {None}}
        return ("" if place is None else known[place] for place in places)
    return map(_text, chunk.to_pylist())


def _text(value: object) -> str:
    return "" if value is None else str(value)


def read_frames(
    paths: Sequence[Path], extra: str, origin: str, names: Mapping[str, Sequence[str]] | None = None
) -> Frame:
    """The columns of Parquet or Arrow files that go on one another.

    Args:
        paths: of the files, at least one, whose content says which they are.
        extra: of the distribution, which brings the library.
        origin: where they are, for messages.
        names: what whole numbers stand for, by column.

    Raises:
        UsageError: the library is not installed, or a file is missing.
        DataError: one is damaged, too large, compressed Arrow, or of neither kind; their columns
            differ, or there are no records.
    """
    arrow = library("pyarrow", extra, origin)
    schema, batches = _read(arrow, paths[0])
    for path in paths[1:]:
        other, more = _read(arrow, path)
        if other != schema:
            raise DataError(f"{path}: has other columns than {paths[0]}; write both anew")
        batches += more
    expect_names(schema.names, origin)
    frame = Frame(origin, schema, arrow.types, batches, names or {})
    expect_few_cells(len(frame), len(schema.names), origin)
    if not len(frame):
        raise DataError(f"{origin}: there are no records")
    return frame


def is_arrow(path: Path) -> bool:
    """Whether a file is Parquet or Arrow by its first bytes; a UsageError where there is none."""
    with _sound(expect_file(path)), path.expanduser().open("rb") as stream:
        return stream.read(_ARROW_HEAD).startswith((_PARQUET, _ARROW, _STREAM))


def _read(arrow: Any, path: Path) -> tuple[Any, list[Any]]:
    path = expect_file(path)
    with _sound(path):
        with path.open("rb") as stream:
            head = stream.read(_ARROW_HEAD)
        if head.startswith(_PARQUET):
            return _read_parquet(arrow, path)
        if head.startswith((_ARROW, _STREAM)):
            return _read_arrow(arrow, path)
        raise DataError(f"{path}: is no Parquet and no Arrow file; for CSV write csv:{path}")


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    try:
        yield
    except GradauditError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
        raise _damaged(path, error) from error
    except Exception as error:  # damage shows in every way that the library can fail
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path}: is no sound Parquet or Arrow file ({printable(first_line(error), 200)}); "
        "fetch or write it again"
    )


def _read_parquet(arrow: Any, path: Path) -> tuple[Any, list[Any]]:
    parquet = library("pyarrow.parquet", "parquet", str(path))
    limits = {"thrift_string_size_limit": _THRIFT, "thrift_container_size_limit": _THRIFT}
    with parquet.ParquetFile(path, pre_buffer=False, **limits) as file:
        _expect_to_fit(file, path)
        kinds = arrow.types.is_string, arrow.types.is_large_string
        text = [f.name for f in file.schema_arrow if any(is_kind(f.type) for is_kind in kinds)]
    with parquet.ParquetFile(path, read_dictionary=text, pre_buffer=False, **limits) as file:
        batches = []
        for batch in file.iter_batches(batch_size=_ROWS, use_threads=False):
            batch.validate(full=True)
            batches.append(batch)
        return file.schema_arrow, batches


def _expect_to_fit(file: Any, path: Path) -> None:
    """Refuse a file that unpacks to far more bytes than its size allows for."""
    metadata, packed = file.metadata, path.stat().st_size
    expect_few_cells(metadata.num_rows, metadata.num_columns, str(path))
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    expect_no_bomb(_VALUE * sum(column.num_values for column in columns), packed, str(path))
    size = sum(column.total_uncompressed_size for column in columns)
    if not 0 <= size <= unpacked_limit(packed):
        raise DataError(
            f"{path}: would unpack to {size >> 20} MiB, over what a file of its size should; write "
            "it without compression, or use fewer records"
        )


def _read_arrow(arrow: Any, path: Path) -> tuple[Any, list[Any]]:
    """The stream, which is inside an Arrow file too, after its first bytes."""
    with arrow.memory_map(str(path)) as source:
        start = _ARROW_HEAD if source.read(len(_ARROW)) == _ARROW else 0
        source.seek(start)
        for message in arrow.ipc.MessageReader.open_stream(source):
            if is_compressed(message.metadata.to_pybytes()):
                raise DataError(
                    f"{path}: is compressed Arrow, which can unpack to any size; write it without "
                    "compression, or as Parquet"
                )
        source.seek(start)
        stream = arrow.ipc.open_stream(source)
        batches, rows = [], 0
        for batch in stream:
            batch.validate(full=True)
            rows += batch.num_rows
            expect_few_cells(rows, batch.num_columns, str(path))
            batches.append(batch)
        if start:
            whole = len(batches) == arrow.ipc.open_file(source).num_record_batches
        else:
            whole = source.tell() == source.size() and _ends(source)
        if not whole:
            raise DataError(f"{path}: ends before its last rows or after; write it again")
        return stream.schema, batches


def _ends(source: Any) -> bool:
    """Whether a stream's last bytes are the mark of its end."""
    source.seek(max(0, source.size() - len(_END)))
    return bool(source.read(len(_END)) == _END)
