"""Reading ``.npz`` archives as untrusted data, and arrays as inputs of a model.

An archive is a zip of arrays, each with a header that declares shape and type. The header is read
first: nothing is unpacked that would not fit into memory, and object arrays (pickles) are refused.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue

from gradaudit.core.files import expect_file
from gradaudit.core.npz import SUFFIX, NpzArchive, opened
from gradaudit.core.text import first_line, printable
from gradaudit.data.common.checks import (
    MAX_COLUMN_BYTES,
    choose,
    expect_finite,
    expect_int64,
    expect_length,
    expect_no_bomb,
    expect_to_fit,
    quote,
)
from gradaudit.data.common.packing import InputPart, Kind
from gradaudit.errors import DataError, GradauditError, UsageError

_KINDS = "biufU"
_CHANNELS = (1, 3, 4)
_LARGEST_WHOLE = 1 << 24
"""Whole numbers up to which float32 holds each of them."""


class Archive:
    """An ``.npz`` file whose arrays are read one at a time.

    Attributes:
        path: the file.
        keys: the names of its arrays.
    """

    def __init__(self, path: Path) -> None:
        """Look into an archive, with the errors of ``read``."""
        self.path = expect_file(path)
        with _opened(self.path) as archive:
            names = [name for name in archive.names if name.endswith(SUFFIX)]
        self.keys = tuple(name.removesuffix(SUFFIX) for name in names)

    def read(
        self, key: str, most: int | None = None, *, records: int | None = None
    ) -> NDArray[Any]:
        """The array of that key, looked at before it is unpacked.

        It may take ``most`` bytes (4 GiB without), and must have an entry for each of the records.

        Raises:
            UsageError: there is none, or no such file.
            DataError: the file is no ``.npz`` archive, or the array holds Python objects or other
                than numbers and text, is too large, has another length, or is damaged.
        """
        key = choose(key, self.keys, str(self.path), "key")
        with _opened(self.path) as archive:
            shape = _check_header(*archive.header(key + SUFFIX), self.origin(key), most)
            if shape and records is not None:
                expect_length(shape[0], records, self.origin(key))
            size = archive.size(key + SUFFIX)
            expect_no_bomb(size, self.path.stat().st_size, self.origin(key))
            return archive.array(key + SUFFIX)

    def read_column(self, key: str, records: int) -> NDArray[Any]:
        """The array of that key, with an entry for each record; it may take 256 MiB."""
        return self.read(key, MAX_COLUMN_BYTES, records=records)

    def names(self, *keys: str) -> tuple[str, ...]:
        """The text in the first of these arrays that there is, for instance the classes' names."""
        arrays = (self.read(key, MAX_COLUMN_BYTES) for key in keys if key in self.keys)
        return tuple(next((a.tolist() for a in arrays if a.dtype.kind == "U" and a.ndim == 1), ()))

    def origin(self, key: str) -> str:
        """File and key, for messages."""
        return f"{self.path}: key {quote(key)}"


def _check_header(
    shape: tuple[int, ...], dtype: np.dtype[Any], origin: str, most: int | None
) -> tuple[int, ...]:
    """The shape, of an array that may be unpacked."""
    if dtype.hasobject:
        raise DataError(
            f"{origin}: holds Python objects, which can run code when read; save numbers or text "
            "(array.astype(str))"
        )
    if dtype.kind not in _KINDS:
        raise DataError(f"{origin}: is of type {dtype}; numbers, truth values or text are needed")
    expect_to_fit(shape, origin, dtype.itemsize, most)
    return shape


@contextmanager
def _opened(path: Path) -> Iterator[NpzArchive]:
    try:
        with opened(path) as archive:
            yield archive
    except GradauditError:
        raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # damage shows in every way that zipfile and numpy can fail
        raise DataError(
            f"{path}: is no sound .npz archive ({printable(first_line(error))}); "
            "write it with numpy.savez"
        ) from error


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


def pictures(array: NDArray[np.uint8 | np.uint16], origin: str) -> NDArray[np.float32]:
    """Bytes (records, height, width[, channels]) as (records, channels, height, width) in [0, 1].

    Numbers of 16 bits are divided by 65,535. Bytes that can only be (records, channels, height,
    width) are taken as such.

    Raises:
        DataError: there are not 1, 3 or 4 channels.
    """
    floats = np.ascontiguousarray(_channels_first(array, origin), dtype=np.float32)
    floats /= np.iinfo(array.dtype).max
    return floats


def scaled(
    array: NDArray[Any], notes: Mapping[str, JsonValue] = MappingProxyType({})
) -> dict[str, JsonValue]:
    """Return notes that say by what ``pictures`` divides this array; as they are of other data."""
    divided = array.dtype in (np.uint8, np.uint16) and array.ndim > 2
    return {**notes, **({"divided_by": int(np.iinfo(array.dtype).max)} if divided else {})}


def pictures_in(array: NDArray[np.uint8], origin: str) -> list[tuple[str, Image.Image]]:
    """Returns an array's bytes as pictures, each with its name for messages."""
    last = np.ascontiguousarray(_channels_first(array, origin).transpose(0, 2, 3, 1))
    single = last[..., 0] if last.shape[3] == 1 else last
    return [(f"{origin}: picture {i}", Image.fromarray(one)) for i, one in enumerate(single)]


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


def packed_labels(
    arrays: Mapping[str, NDArray[Any]], origin: str
) -> tuple[NDArray[np.float32], tuple[InputPart, ...]]:
    """Labels (records, …) by name, side by side as real numbers.

    Raises:
        DataError: they are not of the same records, or a whole number is beyond what float32 holds.
    """
    whole = {n: a.astype(np.int64) if a.dtype.kind in "iu" else a for n, a in arrays.items()}
    for name, array in whole.items():
        if array.dtype.kind == "i" and array.size and np.abs(array).max() > _LARGEST_WHOLE:
            raise DataError(
                f"{origin}: {quote(name)} has numbers beyond {_LARGEST_WHOLE:,}; number from 0"
            )
    block, parts = packed(whole, origin)
    return block.astype(np.float32), parts
