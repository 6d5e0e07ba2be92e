"""Units of work that are done, kept beside the output, so that a killed command goes on from them.

A unit is a value that depends on the run and on words alone: the run is told by a fingerprint of
everything that decides its numbers, so that what another model, seed, option or version made is
never taken for it. What is read back is data: a file is checked against its digest, and nothing but
our own records, arrays and tensors is made from it.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import io
import json
import logging
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
from pydantic import BaseModel
from torch import Tensor

from gradaudit.errors import UsageError
from gradaudit.files import clear_temporaries
from gradaudit.report import write_atomically

log = logging.getLogger(__name__)

T = TypeVar("T")
Word = str | int

FOLDER = "{}.unfinished"
_DIGEST = 32
_NUMPY = {"_reconstruct", "_frombuffer", "scalar", "ndarray", "dtype", "float64", "float32"}


@dataclass(frozen=True)
class Units:
    """Where units are kept, and the words before those of a unit.

    Attributes:
        folder: of the run; None keeps nothing.
        words: that the names of all of these units begin with.
    """

    folder: Path | None = None
    words: tuple[Word, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return self.folder is not None

    def of(self, *words: Word) -> Units:
        """Those whose names go on with these words."""
        return replace(self, words=(*self.words, *words))

    def once(self, make: Callable[[], T]) -> T:
        """The unit of these words, which is no None: what is kept, or what ``make`` gives."""
        value: T | None = self.kept()
        if value is None:
            value = make()
            self.keep(value)
        return value

    def kept(self) -> Any:
        """The unit of these words; None where there is none that is whole and ours."""
        return None if self.folder is None else _read(self._path(self.folder))

    def keep(self, value: object) -> None:
        """Keep the unit; one that cannot be kept, or has no room, is made again by the next run."""
        if self.folder is not None:
            _write(self._path(self.folder), value)

    def forget(self) -> None:
        """Throw away all that is kept: the command has written what it was for."""
        if self.folder is not None:
            for unit in self.folder.iterdir():
                unit.unlink()

    def _path(self, folder: Path) -> Path:
        return folder / hashlib.sha256(json.dumps(self.words).encode()).hexdigest()


NOTHING_KEPT = Units()


@contextmanager
def units_beside(output: Path) -> Iterator[Units]:
    """Units of a command that writes ``output``, until it forgets them or is killed.

    They may hold what an attack rebuilt, so nobody else may look into the folder.

    Raises:
        UsageError: another command is writing the same file, or the folder cannot be made.
    """
    folder = output.absolute().with_name(FOLDER.format(output.name))
    with locked(folder, f"-o {output}", mode=0o700):
        clear_temporaries(folder.parent, glob.escape(output.name))
        yield Units(folder)


@contextmanager
def locked(folder: Path, what: str, *, remove: bool = True, mode: int = 0o777) -> Iterator[None]:
    """Hold a folder for as long as this process works in it; it is made where there is none.

    Where the file system knows no locks there is none.

    Args:
        folder: to hold.
        what: the option that named it, and its value.
        remove: whether the folder is removed afterwards where it is empty.
        mode: of a folder that is made, less the umask.

    Raises:
        UsageError: another process holds it, or it cannot be made.
    """
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(
            f"{what}: {folder.name}: {error.strerror or error}; name another folder"
        ) from error
    try:
        _lock(handle, what)
        yield
    finally:
        os.close(handle)
        if remove:
            with suppress(OSError):  # there is something in it
                folder.rmdir()


def _lock(handle: int, what: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"{what}: another run is writing there; wait for its end, or name another place"
        ) from error
    except OSError as error:
        log.info("%s: no lock: %s", what, error)


def _write(path: Path, value: object) -> None:
    stream = io.BytesIO()
    try:
        _Writer(stream, pickle.HIGHEST_PROTOCOL).dump(value)
        content = stream.getvalue()
        write_atomically(path, hashlib.sha256(content).digest() + content)
    except (UsageError, pickle.PicklingError, TypeError, AttributeError) as error:
        log.info("%s is not kept: %s", path.name, error)


def _read(path: Path) -> Any:
    with suppress(OSError):
        if path.stat().st_uid != os.geteuid():
            return None
        content = path.read_bytes()
        if hashlib.sha256(content[_DIGEST:]).digest() == content[:_DIGEST]:
            with suppress(Exception):
                return _Reader(io.BytesIO(content[_DIGEST:])).load()
        log.info("%s is damaged; its work is done again", path.name)
    return None


class _Writer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Tensors as safetensors; all else as it is."""
        if isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous()
            return _tensor, (safetensors.torch.save({"": plain}),)
        return NotImplemented


def _tensor(content: bytes) -> Tensor:
    return safetensors.torch.load(content)[""]


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Our records, arrays and tensors, and nothing else that a pickle could name.

        Raises:
            UnpicklingError: it names something else.
        """
        if module == __name__ and name == _tensor.__name__:
            return _tensor
        if module.partition(".")[0] == "gradaudit":
            kind = getattr(import_module(module), name)
            if isinstance(kind, type) and _is_record(kind):
                return kind
        if module.partition(".")[0] == "numpy" and name in _NUMPY:
            return getattr(import_module(module), name)
        raise pickle.UnpicklingError(f"{module}.{name} is no record")


def _is_record(kind: type) -> bool:
    return is_dataclass(kind) or issubclass(kind, BaseModel) or hasattr(kind, "_fields")
