"""Every command ends with a status of the contract and, where it fails, one line on stderr."""

import errno
import functools
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import typer

from gradaudit.errors import GradauditError, one_line
from gradaudit.stopping import Stopped
from gradaudit.text import printable

FAILED = 3
INTERRUPTED = 130
_NO_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: errors become one line and an exit status, ``-v`` shows the traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        verbose = bool(kwargs.get("verbose"))
        if verbose:
            logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s")
            logging.getLogger("gradaudit").setLevel(logging.DEBUG)
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except (KeyboardInterrupt, Stopped) as stop:
            say(stop.words if isinstance(stop, Stopped) else "interrupted")
            raise typer.Exit(stop.status if isinstance(stop, Stopped) else INTERRUPTED) from None
        except GradauditError as error:
            _fail(str(error), verbose)
            raise typer.Exit(error.exit_status) from None
        except typer.Exit:
            raise
        except OSError as error:
            _fail(_unwritten(error), verbose)
            raise typer.Exit(FAILED) from None
        except (Exception, SystemExit) as error:
            _fail(f"unexpected {one_line(error)} (-v shows where)", verbose)
            raise typer.Exit(FAILED) from None

    vars(run).setdefault("__signature__", inspect.signature(command))
    return run


def _unwritten(error: OSError) -> str:
    """What to say of standard output where it is full or closed, and leave the rest of it unsaid.

    What is still buffered would fail once more when the interpreter ends.
    """
    if error.filename is not None or error.errno not in _NO_OUTPUT:
        return f"unexpected {one_line(error)} (-v shows where)"
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return f"standard output: cannot be written: {error.strerror}; what is there is not whole"


def _fail(message: str, verbose: bool) -> None:
    if verbose:
        for line in traceback.format_exc().splitlines():
            typer.echo(printable(line, limit=2000), err=True)
    say(message)


def say(message: str) -> None:
    """One harmless line on standard error."""
    typer.echo(f"gradaudit: {printable(' '.join(message.split()), limit=2000)}", err=True)
