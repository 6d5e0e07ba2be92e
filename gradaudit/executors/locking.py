"""Holds a folder for one process."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradaudit.errors import UsageError

log = logging.getLogger(__name__)

_TRIES = 10


@contextmanager
def locked(folder: Path, what: str, *, remove: bool = True) -> Iterator[None]:
    """Hold a folder's lock for as long as this process works in it; makes a missing folder.

    Where the file system knows no locks there is none.

    Args:
        folder: to hold.
        what: the option that named it, and its value.
        remove: whether the folder is removed afterwards where it is empty.

    Raises:
        UsageError: another process holds it, or it cannot be made.
    """
    handle = _held(folder, what)
    try:
        yield
    finally:
        if remove:
            with suppress(OSError):  # there is something in it
                folder.rmdir()
        os.close(handle)


def _held(folder: Path, what: str) -> int:
    """Returns a handle with the lock, on a folder that its last holder has not removed."""
    for _ in range(_TRIES):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(
                f"{what}: {folder.name}: {error.strerror or error}; name another folder"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise UsageError(
                f"{what}: another run is writing there; wait for its end, or name another place"
            ) from error
        except OSError as error:
            log.info("%s: no lock: %s", what, error)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), folder.stat()):
                return handle
        os.close(handle)
    raise UsageError(f"{what}: {folder.name} is removed again and again; name another folder")
