"""Finished units of work, saved beside the output so that a killed command resumes from them.

A unit is a value that depends on the run and on words alone: the run is told by a fingerprint of
everything that decides its numbers, so that what another model, seed, option or version made is
never taken for it. A unit is a pickle, which only who wrote it may be asked to read: each is signed
with a key that lies in the user's own folder, and what is not signed with it is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import pickle
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gradaudit.core.files import clear_temporaries, read_file, state_folder, write_atomically
from gradaudit.errors import UsageError
from gradaudit.executors.stopping import removing

log = logging.getLogger(__name__)

T = TypeVar("T")
Word = str | int

FOLDER = "{}.unfinished"
MAX_BYTES = 1 << 32
"""Largest size of a unit, in bytes."""
_UNIT = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{64}\.gradaudit-[a-z0-9_]+")
"""Names of units, and of temporary files of units."""
_SIGNATURE = 32
_TRIES = 10


@dataclass(frozen=True)
class Units:
    """Store of finished units below a prefix of words.

    Attributes:
        folder: of the run; None keeps nothing.
        words: that the names of all of these units begin with.
    """

    folder: Path | None = None
    words: tuple[Word, ...] = ()

    def __bool__(self) -> bool:
        """Whether units are saved at all."""
        return self.folder is not None

    def of(self, *words: Word) -> Units:
        """Returns the store of the units whose names begin with these words."""
        return replace(self, words=(*self.words, *words))

    def once(self, make: Callable[[], T]) -> T:
        """Returns the saved unit of these words, or saves and returns what ``make`` returns."""
        value: T | None = self.kept()
        if value is None:
            value = make()
            self.keep(value)
        return value

    def kept(self) -> Any:
        """Returns the unit of these words; None where no whole, rightly signed one is saved."""
        path = self._path
        if path is None or not os.path.lexists(path):
            return None
        try:
            content = read_file(path, MAX_BYTES)
            if hmac.compare_digest(content[:_SIGNATURE], _signature(path, content[_SIGNATURE:])):
                return pickle.loads(content[_SIGNATURE:])
        except Exception as error:  # whatever a damaged pickle raises
            log.info("%s cannot be read, its work is done again: %s", path.name, error)
        return None

    def keep(self, value: object) -> None:
        """Save the unit; one that cannot be saved is computed again by the next run."""
        path = self._path
        if path is None:
            return
        try:
            content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            write_atomically(path, _signature(path, content) + content)
        except Exception as error:  # whatever a value raises that is no plain data
            log.info("%s is not kept: %s", path.name, error)

    def forget(self) -> None:
        """Remove all saved units, as the command has written its result."""
        for path in self.all():
            with suppress(OSError):
                path.unlink()

    def all(self) -> list[Path]:
        """Yields every saved unit."""
        if self.folder is None:
            return []
        with suppress(OSError):
            return [path for path in self.folder.iterdir() if _UNIT.fullmatch(path.name)]
        return []

    @property
    def _path(self) -> Path | None:
        name = hashlib.sha256(json.dumps(self.words).encode()).hexdigest()
        return None if self.folder is None else self.folder / name


NOTHING_KEPT = Units()


def _signature(path: Path, content: bytes) -> bytes:
    return hmac.digest(_key(), path.name.encode() + content, "sha256")


def _key() -> bytes:
    """Returns the user's key, which is made where there is none.

    Raises:
        OSError: the user has no folder to keep it in.
        UsageError: it is no file of the user's alone.
    """
    path = state_folder() / "key"
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(secrets.token_bytes(_SIGNATURE))
            with suppress(FileExistsError):  # another run was first
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
    _expect_private(path)
    key = read_file(path, _SIGNATURE)
    if len(key) < _SIGNATURE:
        raise UsageError(f"{path}: is not a complete key; remove it")
    return key


def _expect_private(path: Path) -> None:
    status = path.lstat()
    kind = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    if not kind or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UsageError(f"{path}: is not yours alone; remove it, or take its rights from others")


@contextmanager
def units_beside(output: Path) -> Iterator[Units]:
    """Yields the units of a command that writes ``output``, removed when the command is done.

    They may hold what an attack rebuilt, so nobody else may look into the folder.

    Raises:
        UsageError: another command is writing the same file, or the folder cannot be made or is
            not the user's alone.
    """
    folder = output.absolute().with_name(FOLDER.format(output.name))
    with locked(folder, f"-o {output}", mode=0o700):
        _expect_private(folder)
        clear_temporaries(output)
        yield Units(folder)


@contextmanager
def locked(folder: Path, what: str, *, remove: bool = True, mode: int = 0o777) -> Iterator[None]:
    """Hold a folder's lock for as long as this process works in it; makes a missing folder.

    Where the file system knows no locks there is none.

    Args:
        folder: to hold.
        what: the option that named it, and its value.
        remove: whether the folder is removed afterwards where it is empty.
        mode: of a folder that is made, less the umask.

    Raises:
        UsageError: another process holds it, or it cannot be made.
    """
    handle = _held(folder, what, mode)
    try:
        with removing(folder) if remove else nullcontext():
            yield
    finally:
        os.close(handle)


def _held(folder: Path, what: str, mode: int) -> int:
    """Returns a handle with the lock, on a folder that its last holder has not removed."""
    for _ in range(_TRIES):
        try:
            folder.mkdir(mode, parents=True, exist_ok=True)
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
