"""Standard output that nobody may read to its end, as in ``gradaudit list | head``."""

import io
import os
import sys
from contextlib import suppress

from typing_extensions import Buffer


class Pipe(io.FileIO):
    """A descriptor that is written to in silence once nobody reads it any more."""

    def write(self, data: Buffer) -> int:
        """Write, and drop output that has no reader; a full disk is still an error.

        Raises:
            OSError: it cannot be written for another reason.
        """
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def let_readers_go() -> None:
    """Let a command whose output is cut off end as it would have, with its own status."""
    with suppress(OSError, ValueError, AttributeError):  # there is none, or it is no file
        old = sys.stdout
        raw = Pipe(old.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=raw.isatty(),
        )
