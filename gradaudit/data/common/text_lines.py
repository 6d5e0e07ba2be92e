"""Text files as lines: plain or compressed by gzip, in UTF-8, and none of them without end."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradaudit.data.common import checks
from gradaudit.errors import DataError, UsageError
from gradaudit.files import expect_file

MAX_LINE = 4 << 20
"""Characters in a line."""
MAX_EMPTY = 100_000
"""Lines that hold nothing."""

_GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def opened_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """The text in a file, a byte order mark passed over.

    Raises:
        UsageError: the file is missing or cannot be read.
        DataError: it is damaged, is no text in UTF-8, or holds too much.
    """
    path = expect_file(path)
    try:
        with path.open("rb") as plain:
            zipped = plain.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            plain.seek(0)
            unpacked = gzip.GzipFile(fileobj=plain) if zipped else plain
            packed = path.stat().st_size if zipped else None
            capped = io.BufferedReader(_CappedReader(unpacked, str(path), packed))
            with io.TextIOWrapper(capped, encoding="utf-8-sig", newline="") as stream:
                yield stream
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not text in UTF-8 ({error.reason}); save it as UTF-8"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: is damaged: {error}; fetch it again") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def lines_of(stream: io.TextIOBase, origin: str) -> Iterator[str]:
    """The lines of a text file; a DataError where one, or their number, has no end."""
    empty = 0
    while line := stream.readline(MAX_LINE):
        empty += line.isspace()
        if empty > MAX_EMPTY:
            raise DataError(f"{origin}: has over {MAX_EMPTY} empty lines; is it a table?")
        if "\0" in line:
            raise DataError(f"{origin}: holds zero bytes, as no text does; save it as UTF-8")
        if len(line) == MAX_LINE:
            raise DataError(f"{origin}: has a line of over {MAX_LINE} characters; is it a table?")
        yield line


class _CappedReader(io.RawIOBase):
    """A binary stream that refuses to yield more than a text file may hold.

    One that unpacks a file of ``packed`` bytes may not yield more than text can be compressed to.
    """

    def __init__(self, stream: Any, origin: str, packed: int | None) -> None:
        grown = checks.MAX_TEXT_BYTES if packed is None else checks.unpacked_limit(packed)
        self._stream = stream
        self._most = self._left = min(checks.MAX_TEXT_BYTES, grown)
        self._origin = origin
        self._remedy = "use fewer records" if packed is None else "unpack it first"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._stream.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise DataError(
                f"{self._origin}: holds more than {self._most >> 20} MiB of text unpacked; "
                f"{self._remedy}"
            )
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()
