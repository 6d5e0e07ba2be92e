"""Checks files that a user names before they are read or written."""

import glob
import hashlib
import os
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradaudit.core.text import printable
from gradaudit.errors import UsageError

FOUND = Path("gradaudit.yaml")
"""Configuration file that commands read from the working directory where none is named."""
TEMPORARY = ".{}.gradaudit-"
"""Prefix of the temporary file beside a file that is being written."""


def state_folder() -> Path:
    """Returns the folder of what is kept for the user; it need not be there."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "gradaudit"


def expect_file(path: Path, limit: int | None = None) -> Path:
    """Returns the path of a regular file, with ``~`` expanded; raises an error for anything else.

    A pipe or a device is refused without opening it, which could wait for ever.

    Args:
        path: of the file, or of a link to one.
        limit: bytes that it may have.

    Raises:
        UsageError: there is no such file, it is none, or it is larger.
    """
    path = path.expanduser()
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{path}: cannot be read: {reason}; name the file with its folder"
        ) from error
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path}: cannot be read: Is a directory; name the file in it")
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path}: is no regular file; copy its content to one")
    if limit is not None and status.st_size > limit:
        raise UsageError(f"{path}: larger than {limit:,} bytes; is it the right file?")
    return path


def digest_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits; a UsageError where there is none."""
    with expect_file(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of_shards(index: Path, shards: Iterable[str]) -> str:
    """Returns the SHA-256 of the lines that ``sha256sum INDEX SHARD…`` prints.

    Args:
        index: a file that names others beside it.
        shards: their names, each of which counts once, in alphabetical order.

    Raises:
        UsageError: a file is missing.
    """
    files = [index, *(index.parent / name for name in sorted(set(shards)))]
    lines = "".join(f"{digest_of(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def read_file(path: Path, limit: int) -> bytes:
    """Returns the content of a regular file.

    Raises:
        UsageError: as ``expect_file``, or it cannot be read.
    """
    path = expect_file(path, limit)
    try:
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > limit:
        raise UsageError(f"{path}: larger than {limit:,} bytes; is it the right file?")
    return content


def read_input(path: str | Path, limit: int) -> bytes:
    """Returns the content of a regular file, or of standard input for a dash.

    Raises:
        UsageError: as ``expect_file``, it cannot be read, or nothing comes in.
    """
    if str(path) != "-":
        return read_file(Path(path), limit)
    content = sys.stdin.buffer.read(limit + 1) if sys.stdin and not sys.stdin.isatty() else b""
    if not content:
        raise UsageError("-: nothing on standard input; pipe a report into it, or name a file")
    if len(content) > limit:
        raise UsageError(f"-: more than {limit:,} bytes; is it the right input?")
    return content


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object of its keys and values, as an ``object_pairs_hook``.

    Raises:
        ValueError: a key occurs twice.
    """
    known = dict(pairs)
    if len(known) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"key {printable(twice)!r} twice")
    return known


def expect_other_files(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Raise an error where a file to write is one that the command reads.

    Raises:
        UsageError: an output file is one of the inputs, under whatever name.
    """
    read = {os.path.realpath(path) for path in inputs if path is not None}
    for path in outputs:
        if os.path.realpath(path) in read:
            raise UsageError(f"-o {path}: is read by this command; name another file to write")


def clear_temporaries(path: Path) -> None:
    """Remove temporary files of this file that a killed run left beside it.

    Only who holds the lock on the file knows that nobody else is writing it.
    """
    path = Path(os.path.realpath(path))
    for left in path.parent.glob(glob.escape(TEMPORARY.format(path.name)) + "*"):
        with suppress(OSError):
            left.unlink()


def destination(path: Path) -> Path:
    """Returns the path that a file is written to, with links resolved.

    Raises:
        UsageError: something that is no regular file has the name.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise UsageError(f"{path}: is {kind}; name a file to write")
    return path


def write_atomically(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file completely or not at all, through a temporary file; links are followed.

    A private file is readable by its owner alone, whatever the umask.

    Raises:
        UsageError: the folder is missing or cannot be written, or the name is that of a folder, a
            pipe or a device.
    """
    data = content.encode() if isinstance(content, str) else content
    path = destination(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY.format(path.name))
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            if not private:
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
