"""The columns of a Parquet or Arrow file, as text of a table or as arrays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.common.checks import choose, quote
from gradaudit.data.common.tables import TextTable
from gradaudit.errors import DataError
from gradaudit.text import printable


@dataclass(frozen=True)
class Frame:
    """The columns of a file, in Arrow's memory.

    Attributes:
        origin: the file, for messages.
        schema: names and types of its columns.
        batches: its rows.
        names: what whole numbers stand for, by column.
    """

    origin: str
    schema: Any
    batches: Sequence[Any]
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def chunks(self, name: str) -> list[Any]:
        """A column, in pieces; a UsageError where there is none."""
        place = self.schema.names.index(choose(name, self.schema.names, self.origin, "column"))
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
        return np.concatenate([_numbers(chunk, origin) for chunk in self.chunks(name)])

    def largest(self, name: str) -> int:
        """The largest number of a column of whole ones that are not below 0; else −1."""
        if not _types().is_integer(self.schema.field(name).type):
            return -1
        array = self.array(name)
        return int(array.max()) if array.min() >= 0 else -1

    def cells(self, name: str) -> list[str]:
        """A column as text, empty where there is none; a DataError where it holds more."""
        kind = self.schema.field(name).type
        if not _is_plain(_types(), kind):
            raise DataError(
                f"{self.origin}: column {quote(name)} holds {printable(str(kind), 60)}; numbers, "
                f"text or dates are needed, or leave it out with drop={printable(name, 60)}"
            )
        once: dict[str, str] = {}  # chunks may share a dictionary of long values
        cells = chain.from_iterable(map(_texts, self.chunks(name)))
        texts = [once.setdefault(text, text) for text in cells]
        names = {str(code): label for code, label in enumerate(self.names.get(name, ()))}
        return [names.get(text, text) for text in texts] if names else texts


def _types() -> Any:
    """The predicates of Arrow's types, of a library that need not be installed."""
    return import_module("pyarrow.types")


class _Cells(Mapping[str, Sequence[str]]):
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def __getitem__(self, name: str) -> Sequence[str]:
        return self._frame.cells(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame.schema.names)

    def __len__(self) -> int:
        return len(self._frame.schema.names)

    def __contains__(self, name: object) -> bool:
        return name in self._frame.schema.names


def _numbers(chunk: Any, origin: str) -> NDArray[Any]:
    """A piece of a column as an array (records, …)."""
    kinds, shape = _types(), [len(chunk)]
    while (
        kinds.is_list(chunk.type)
        or kinds.is_large_list(chunk.type)
        or (kinds.is_fixed_size_list(chunk.type))
    ):
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
