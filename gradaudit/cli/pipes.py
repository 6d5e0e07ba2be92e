"""Standard output whose reader may stop early, as in ``gradaudit list | head``."""

import io
import os
import sys
from contextlib import suppress

from typing_extensions import Buffer


class Pipe(io.FileIO):
    """A stream that drops what is written to it once its reader has gone."""

    def write(self, data: Buffer) -> int:
        """Write, and drop the output where the reader has gone; a full disk still raises an error.

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
    """Let a command whose reader stops early end with its own exit status."""
    with suppress(OSError, ValueError, AttributeError):  # there is none, or it is no file
        old = sys.stdout
        raw = Pipe(old.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=raw.isatty(),
        )
