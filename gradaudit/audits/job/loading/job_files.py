"""Reads the files of a job in a child process, within limits and within the job's folder."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gradaudit.core import contained
from gradaudit.core.contained import ContainedError
from gradaudit.core.files import expect_file
from gradaudit.errors import GradauditError, UsageError, one_line

MOST_BYTES = 1 << 20
"""Most bytes of a file, and of what it is read as."""


def inside(folder: Path, path: Path) -> Path:
    """Return a path that lies in the job's folder, links followed.

    Raises:
        UsageError: it lies elsewhere.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{path}: lies outside the job's folder {folder}; copy it into the folder")
    return path


def read_job_file(path: Path, reader: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Read keys and values of a file by a library, in a child process.

    Args:
        path: of a regular file.
        reader: gives keys and plain values; whatever it raises is an error about the file.

    Raises:
        UsageError: it is no regular file, too large, or cannot be read within the child's limits.
    """
    expect_file(path, MOST_BYTES)

    def work() -> str:
        try:
            text = json.dumps(reader(path), default=str)
        except (MemoryError, GradauditError):
            raise
        except (Exception, SystemExit) as error:  # whatever a parser raises
            raise UsageError(f"{path}: cannot be read: {one_line(error)}") from error
        if len(text) > MOST_BYTES:
            raise UsageError(f"{path}: holds more than {MOST_BYTES:,} bytes of settings")
        return text

    try:
        read = json.loads(contained.read(work))
    except ContainedError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    if not isinstance(read, dict):
        raise UsageError(f"{path}: holds no keys and values")
    return read
