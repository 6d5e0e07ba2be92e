"""Holds a folder for one process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradaudit.errors import UsageError


@contextmanager
def locked(folder: Path, option: str) -> Iterator[None]:
    """Lock a folder for this process; a new one is removed afterwards where it is empty.

    Raises:
        UsageError: another process holds it, or it cannot be made or locked.
    """
    new, handle = not folder.exists(), None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if handle is not None:
            os.close(handle)
        if isinstance(error, BlockingIOError):
            what = (
                f"{option}: another run is writing there; wait for its end, or name another place"
            )
            raise UsageError(what) from error
        reason = error.strerror or error
        raise UsageError(f"{option}: {folder.name}: {reason}; name another folder") from error
    try:
        yield
    finally:
        if new:
            with suppress(OSError):  # there is something in it
                folder.rmdir()
        os.close(handle)
