"""Reading Parquet and Arrow files as untrusted data, column by column.

What a file declares is looked at before anything is unpacked: rows times columns, and bytes against
those of the file. Columns of text keep each value once, so that none unpacks by repeating.
Compressed Arrow, whose buffers unpack to any size, is refused; Parquet says sizes beforehand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from gradaudit.data.common.arrow_frame import Frame
from gradaudit.data.common.arrow_message import is_compressed
from gradaudit.data.common.checks import (
    expect_few_cells,
    expect_names,
    expect_no_bomb,
    unpacked_limit,
)
from gradaudit.errors import DataError, GradauditError, UsageError
from gradaudit.files import expect_file
from gradaudit.text import printable
from gradaudit.user_code import first_line

_PARQUET, _ARROW, _STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_ARROW_HEAD = 8
_ROWS = 1 << 14
_THRIFT = 16 << 20
_VALUE = 8
"""Bytes of a number, of which one list may hold any number in little space."""


def read_frames(
    paths: Sequence[Path], extra: str, origin: str, names: Mapping[str, Sequence[str]] | None = None
) -> Frame:
    """The columns of Parquet or Arrow files that go on one another.

    Args:
        paths: of the files, at least one, which are told by their content.
        extra: of the distribution, which brings the library.
        origin: where they are, for messages.
        names: what whole numbers stand for, by column.

    Raises:
        UsageError: the library is not installed, or a file is missing.
        DataError: one is damaged, too large, compressed Arrow, or of neither kind; their columns
            differ, or there are no records.
    """
    try:
        arrow = import_module("pyarrow")
    except ImportError as error:
        raise UsageError(
            f"{origin}: pyarrow is not installed; install gradaudit[{extra}]"
        ) from error
    schema, batches = _read(arrow, paths[0])
    for path in paths[1:]:
        other, more = _read(arrow, path)
        if other != schema:
            raise DataError(f"{path}: has other columns than {paths[0]}; write both anew")
        batches += more
    expect_names(schema.names, origin)
    frame = Frame(origin, schema, batches, names or {})
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
        return _reader(head, path)(arrow, path)


def _reader(head: bytes, path: Path) -> Callable[[Any, Path], tuple[Any, list[Any]]]:
    if head.startswith(_PARQUET):
        return _read_parquet
    if head.startswith((_ARROW, _STREAM)):
        return _read_arrow
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
    parquet = import_module("pyarrow.parquet")
    limits = {"thrift_string_size_limit": _THRIFT, "thrift_container_size_limit": _THRIFT}
    with parquet.ParquetFile(path, pre_buffer=False, **limits) as file:
        _expect_to_fit(file, path)
        text = [field.name for field in file.schema_arrow if _is_text(arrow, field.type)]
    with parquet.ParquetFile(path, read_dictionary=text, pre_buffer=False, **limits) as file:
        batches = []
        for batch in file.iter_batches(batch_size=_ROWS, use_threads=False):
            batch.validate(full=True)
            batches.append(batch)
        return file.schema_arrow, batches


def _expect_to_fit(file: Any, path: Path) -> None:
    """Refuse what unpacks to more than a file of its size should."""
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


def _is_text(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))


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
        return stream.schema, batches
