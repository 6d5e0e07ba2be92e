"""Arrays: those of ``.npz`` archives, and arrays as inputs of a model."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.core.text import first_line, printable
from gradaudit.data.common.checks import (
    choose,
    choose_all,
    expect_finite,
    expect_int64,
    expect_length,
    expect_to_fit,
    quote,
)
from gradaudit.data.common.packing import InputPart, Kind
from gradaudit.data.common.reading import read
from gradaudit.data.common.table_columns import DataColumn
from gradaudit.errors import DataError

_KINDS = "biufU"
_KEY = "key "
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Archive:
    """Arrays of an ``.npz`` file.

    Attributes:
        file: the file, for messages.
        cells: names of all its arrays.
        arrays: those that were read, by name.
        notes: how the file was read, for the report.
    """

    file: str
    cells: Sequence[str]
    arrays: Mapping[str, NDArray[Any]]
    notes: Mapping[str, JsonValue] = field(default_factory=dict)

    def __getitem__(self, key: str) -> NDArray[Any]:
        """Return the array of that key; a UsageError where there is none."""
        return self.arrays[choose(key, self.cells, self.file, "key")]

    def column(self, key: str) -> DataColumn:
        """Return the array of that key as a column, with the names of its values."""
        column = DataColumn.of_array(key, self.origin(key), self[key])
        return column.named(self.names_of(key))

    def names(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the keys among these, which may be comma separated; each once."""
        return choose_all(keys, self.cells, self.file, "key")

    def names_of(self, key: str) -> tuple[str, ...]:
        """Return the text in ``KEY_names``, for instance the classes' names."""
        arrays = (self.arrays[name] for name in _names_of(key) if name in self.arrays)
        return tuple(next((a.tolist() for a in arrays if a.dtype.kind == "U" and a.ndim == 1), ()))

    def origin(self, key: str) -> str:
        """Return file and key, for messages."""
        return _origin(self.file, key)


def _names_of(key: str) -> tuple[str, str]:
    return f"{key}_names", f"{key.removesuffix('s')}_names"


def _origin(path: Path | str, key: str) -> str:
    return f"{path}: key {quote(key)}"


def read_arrays(path: Path, keys: Iterable[str]) -> Archive:
    """Read arrays of an ``.npz`` file and of their values' names, of those keys that there are.

    Raises:
        UsageError: there is no such file.
        DataError: it is no ``.npz`` archive, is damaged, or an array is no numbers or text.
    """
    parts = [part for key in keys for part in (key, *key.split(","))]
    wanted = {name for part in (*parts, "class") for name in (part, *_names_of(part))}
    made = read(archive_arrays, path, wanted=wanted)
    held: list[str] = made.pop("keys")
    return Archive(
        str(path), held, {name.removeprefix(_KEY): array for name, array in made.items()}
    )


def archive_arrays(path: Path, *, wanted: Collection[str]) -> dict[str, Any]:
    """Read those arrays of an ``.npz`` file that are wanted, and the keys of all."""
    arrays: dict[str, NDArray[Any]] = {}
    key = ""
    try:
        archive = np.load(path, allow_pickle=False)
        keys = [*getattr(archive, "files", ())]
        if len(set(keys)) < len(keys) or not keys:
            raise ValueError("keys twice" if keys else "no keys")
        for key in filter(wanted.__contains__, keys):
            arrays[key] = np.asarray(archive[key])
    except MemoryError:
        raise
    except Exception as error:  # damage shows in every way that zipfile and numpy can fail
        if "Object arrays" in str(error) and key:
            raise DataError(
                f"{_origin(path, key)}: holds Python objects, which can run code when read; save "
                "numbers or text (array.astype(str))"
            ) from error
        raise DataError(
            f"{path}: is no sound .npz archive ({printable(first_line(error))}); "
            "write it with numpy.savez"
        ) from error
    for key, array in arrays.items():
        if array.dtype.kind not in _KINDS:
            what = f"is of type {array.dtype}; numbers, truth values or text are needed"
            raise DataError(f"{_origin(path, key)}: {what}")
    return {"keys": keys, **{_KEY + key: array for key, array in arrays.items()}}


def as_inputs(array: NDArray[Any], origin: str, *, tokens: bool = False) -> NDArray[Any]:
    """An array as inputs: pictures in [0, 1], other numbers as they are.

    Bytes of shape (records, height, width[, channels]) are pictures and become (records, channels,
    height, width) in [0, 1]. With ``tokens``, whole numbers stay whole.

    Returns:
        (records, …) float32, or int64 tokens.

    Raises:
        DataError: the array holds text or no records, is not finite, or is too large as floats;
            bytes are shaped like no picture; tokens are no whole numbers.
    """
    if array.dtype.kind == "U" or array.ndim < 2 or 0 in array.shape:
        raise DataError(
            f"{origin}: is {array.dtype} of shape {array.shape}; inputs are numbers of shape "
            "(records, …)"
        )
    expect_to_fit(array.shape, origin)
    if tokens:
        if array.dtype.kind not in "iu":
            raise DataError(f"{origin}: is {array.dtype}; tokens are whole numbers")
        expect_int64(array, origin)
        return array.astype(np.int64)
    if array.dtype == np.uint8 and array.ndim > 2:
        return pictures(array, origin)
    with np.errstate(over="ignore"):
        floats = np.require(array, np.float32, "W")
    expect_finite(floats, origin)
    return floats


def pictures(array: NDArray[np.uint8], origin: str) -> NDArray[np.float32]:
    """Bytes (records, height, width[, channels]) as (records, channels, height, width) in [0, 1].

    Bytes that can only be (records, channels, height, width) are taken as such.

    Raises:
        DataError: there are not 1, 3 or 4 channels.
    """
    floats = np.ascontiguousarray(_channels_first(array, origin), dtype=np.float32)
    floats /= 255
    return floats


def scaled(
    array: NDArray[Any], notes: Mapping[str, JsonValue] = MappingProxyType({})
) -> dict[str, JsonValue]:
    """Return notes that say by what ``pictures`` divides this array; as they are of other data."""
    divided = array.dtype == np.uint8 and array.ndim > 2
    return {**notes, **({"divided_by": 255} if divided else {})}


def _channels_first(array: NDArray[Any], origin: str) -> NDArray[Any]:
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim == 4 and array.shape[3] in _CHANNELS:
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in _CHANNELS:
        raise DataError(
            f"{origin}: bytes of shape {array.shape} are no pictures; store (records, height, "
            "width) or (records, height, width, channels), or floats as the model takes them"
        )
    return array


def packed(
    arrays: Mapping[str, NDArray[Any]], origin: str
) -> tuple[NDArray[Any], tuple[InputPart, ...]]:
    """Arrays (records, …) by the name that the model takes them by, side by side.

    Returns:
        (records, positions): int64 where all are whole numbers or truth values, else float32; and
        the parts in their order.

    Raises:
        DataError: there are none, they are not of the same records, or one cannot be an input.
    """
    if not arrays:
        raise DataError(f"{origin}: there are none; give the model's arguments by name")
    count, columns, parts = len(next(iter(arrays.values()))), [], []
    for name, array in arrays.items():
        where = f"{origin}: {quote(name)}"
        if not array.ndim or not len(array):
            raise DataError(f"{where}: is of shape {array.shape}; (records, …) is needed")
        expect_length(len(array), count, where)
        kind = _kind_of(array)
        shaped = array.reshape(-1, 1) if array.ndim == 1 else array
        values = as_inputs(shaped, where) if kind == "numbers" else shaped.astype(np.int64)
        shape = array.shape[1:] if array.ndim == 1 else values.shape[1:]
        columns.append(values.reshape(count, -1))
        parts.append(InputPart(name, tuple(shape), kind))
    whole = all(part.kind != "numbers" for part in parts)
    return np.concatenate(columns, axis=1).astype(np.int64 if whole else np.float32), tuple(parts)


def _kind_of(array: NDArray[Any]) -> Kind:
    """Kind of an array's values; bytes of more than one dimension are pictures."""
    if array.dtype.kind == "b":
        return "flags"
    pictures = array.dtype == np.uint8 and array.ndim > 2
    return "tokens" if array.dtype.kind in "iu" and not pictures else "numbers"
