"""Reading of files of others by libraries, in a child process with limits."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradaudit.core import contained
from gradaudit.core.contained import ContainedError
from gradaudit.core.files import expect_file
from gradaudit.errors import DataError

_RATIO = 50
"""Bytes of memory for each of a file, which may be compressed."""
_BYTES_A_SECOND = 1 << 20
_ANSWER = 256 << 20
"""Bytes of arrays that any file may unpack to."""


def read(reader: Callable[..., dict[str, Any]], *paths: Path, **options: Any) -> dict[str, Any]:
    """Return what a reader makes of files, in a child process.

    Args:
        reader: gets the paths and the options; returns arrays and text by name.
        *paths: of regular files.
        **options: of the reader.

    Raises:
        UsageError: a file is missing or cannot be read.
        DataError: the reader failed, or went beyond its limits.
    """
    files = [expect_file(path) for path in paths]
    size = sum(file.stat().st_size for file in files)
    most = max(_ANSWER, _RATIO * size)
    work = partial(_read, reader, files, most, options)
    try:
        made: dict[str, Any] = contained.read(
            work, seconds=size / _BYTES_A_SECOND, memory=_RATIO * size, output=2 * most
        )
        return made
    except ContainedError as error:
        raise DataError(
            f"{paths[0]}: cannot be read ({error}); write it anew, or with fewer records"
        ) from error


def _read(
    reader: Callable[..., dict[str, Any]],
    files: Sequence[Path],
    most: int,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Read files in the child; refuse arrays that are too large to be sent back."""
    made = reader(*files, **options)
    size = sum(part.nbytes for part in made.values() if isinstance(part, np.ndarray))
    if size > most:
        raise DataError(
            f"{files[0]}: would unpack to {size >> 20} MiB, over {_RATIO} times the file; write it "
            "without compression"
        )
    return made
