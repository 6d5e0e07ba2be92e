"""NumPy archives: zips of arrays, each with a header that is read before it is unpacked."""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

SUFFIX = ".npy"
"""Suffix of array names in an archive."""
_MAX_HEADER_BYTES = 1 << 16
_MAX_DIRECTORY_BYTES = 4 << 20
"""Largest directory of an archive in bytes, enough for some 30,000 arrays."""


class NpzArchive:
    """An open archive, whose reader checks an array's header and size before unpacking it.

    Attributes:
        names: of all entries, in their order.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = tuple(archive.namelist())

    def size(self, name: str) -> int:
        """Returns the size in bytes that an entry declares."""
        return self._archive.getinfo(name).file_size

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Returns the shape and type that an entry declares."""
        with self._archive.open(name) as stream:
            start = io.BytesIO(stream.read(_MAX_HEADER_BYTES))
        first = npy.read_magic(start) == (1, 0)
        read = npy.read_array_header_1_0 if first else npy.read_array_header_2_0
        shape, _, dtype = read(start)
        return shape, dtype

    def array(self, name: str) -> NDArray[Any]:
        """Returns an entry's array, unpacked; pickles are refused."""
        with self._archive.open(name) as stream:
            return npy.read_array(stream, allow_pickle=False)


@contextmanager
def opened(path: Path) -> Iterator[NpzArchive]:
    """Yields the archive at a path.

    Damage shows in every way that zipfile and numpy can fail, here and in the archive's methods.
    """
    with _File(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
        yield NpzArchive(archive)


class _File(io.BufferedReader):
    """A file that zipfile reads piece by piece, with a limit on the directory's size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"a directory of {size} bytes is too large")
        return super().read(size)
