"""Runs libraries on files of others in a child process that is limited in time and memory.

Python code cannot be interrupted inside a library's native code, nor can memory that it has taken
be got back. A child that goes beyond its limits is ended by the system, whatever it is at, and
nothing of it is left.
"""

import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gradaudit.errors import GradauditError, foreign, one_line, short_of_memory

SECONDS = 6
"""Seconds of processor time that a child has for a small file."""
BYTES = 640 << 20
"""Bytes of memory that it may take beyond those of the process that it is forked from."""
FILE_BYTES = 16 << 20
"""Largest size of a file that it may write, in bytes."""
_WAITING = 10
"""How many times longer than its seconds of processor time a child may take by the clock."""

T = TypeVar("T")


class ContainedError(Exception):
    """A failure in a child process, in words that may follow the name of a file."""


def contained(work: Callable[[], T], seconds: float = 0, memory: int = 0) -> T:
    """Returns the result of ``work``, done in a child process, which begins as a copy of this one.

    Args:
        work: takes nothing; returns what pickles. Its output to the streams is dropped.
        seconds: of processor time that it may take beside ``SECONDS``, as its input is large.
        memory: bytes that it may take beside ``BYTES``.

    Raises:
        GradauditError: that the work raised.
        ContainedError: it raised another error, took too much time or memory, or crashed.
    """
    limit = SECONDS + round(seconds)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, writing, limit, BYTES + memory)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as stream, suppress(EOFError, pickle.UnpicklingError):
            result, error = pickle.load(stream)
            if error is None:
                return result  # type: ignore[no-any-return]
            raise error
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    raise ContainedError(_end(-status, limit, BYTES + memory))


def _end(number: int, seconds: int, memory: int) -> str:
    """Explain by its signal why a child process ended without a message."""
    if number in (signal.SIGXCPU, signal.SIGALRM):
        return f"it takes more than {seconds:,} seconds"
    if number > 0:
        return f"{signal.Signals(number).name} ends it, where it may take {memory >> 20:,} MiB"
    return "it ends the library"


def _much(memory: int) -> str:
    return f"it takes more than {memory >> 20:,} MiB of memory"


def _work(work: Callable[[], Any], writing: int, seconds: int, memory: int) -> NoReturn:
    """Do the work in a child, send its result or its error to the pipe, and end the child."""
    try:
        _limit(seconds, memory)
        answer: tuple[Any, Exception | None] = None, None
        try:
            with foreign():
                answer = work(), None
        except GradauditError as error:
            answer = None, type(error)(str(error))
        except Exception as error:
            short = short_of_memory(error)
            answer = None, ContainedError(_much(memory) if short else one_line(error))
        with os.fdopen(writing, "wb") as stream:
            pickle.dump(answer, stream, protocol=5)
    finally:
        os._exit(0)


def _limit(seconds: int, memory: int) -> None:
    """Limit this process, let signals end it, and drop what it writes to the streams."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(name, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    sys.stdout = sys.stderr = os.fdopen(null, "w")
    signal.alarm(_WAITING * seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    if sys.platform == "linux":  # elsewhere the system does not say what is taken
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        taken = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (taken + memory, taken + memory))
