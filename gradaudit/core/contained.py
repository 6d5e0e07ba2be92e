"""The door for what comes from outside: readers run in a child process with limits.

Python code cannot be interrupted inside a library's native code, nor can memory that it has taken
be got back. A child that goes beyond its limits is ended by the system, whatever it is at, and
nothing of it is left. Back come text, numbers and arrays, never a pickle: JSON, and files of NumPy
in a private folder, which are mapped.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import numpy as np

import gradaudit.errors as errors
from gradaudit.errors import GradauditError, foreign, one_line, short_of_memory

SECONDS = 6
"""Seconds of processor time that a child has for a small file."""
BYTES = 640 << 20
"""Bytes of memory that it may take beyond those of the process that it is forked from."""
FILE_BYTES = 16 << 20
"""Bytes that a file with what a child sends back may have."""
FILES = 1024
"""Files that a child may have open."""
_WAITING = 10
"""How many times longer than its seconds of processor time a child may take by the clock."""
_ANSWER = "answer.json"
_ARRAY = "array"
"""Key of the place of an array in the answer; other dicts are lists of their pairs."""
_KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, GradauditError)
}


class ContainedError(Exception):
    """A failure in a child process, in words that may follow the name of a file."""


def read(
    reader: Callable[[], Any], *, seconds: float = 0, memory: int = 0, output: int = FILE_BYTES
) -> Any:
    """Return what a reader makes of files of others, in a child process.

    The process begins as a copy of this one.

    Args:
        reader: returns None, numbers, text and arrays of NumPy, in lists (or tuples, which become
            lists) and dicts with text as keys. What it writes to the streams is dropped.
        seconds: of processor time that it may take beside ``SECONDS``, as its input is large.
        memory: bytes that it may take beside ``BYTES``.
        output: bytes that its text together, and each array, may have.

    Raises:
        GradauditError: that the reader raised.
        ContainedError: it raised another error, took too much time or memory, or crashed.
    """
    limit = SECONDS + round(seconds)
    with TemporaryDirectory(prefix="gradaudit-") as folder:
        child = os.fork()
        if child == 0:
            _work(reader, Path(folder), limit, BYTES + memory, output)
        status = -_ended(child)
        if not status:
            return _answer(Path(folder), output)
    raise ContainedError(_end(status, limit, BYTES + memory))


def _ended(child: int) -> int:
    """Wait for a child, and end it where this process is interrupted."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def _answer(folder: Path, most: int) -> Any:
    """Read what a child has left in its folder."""
    path = folder / _ANSWER
    if not path.is_file() or path.stat().st_size > most:
        raise ContainedError(_end(0, 0, 0))
    answer = json.loads(path.read_bytes())
    if error := answer.get("error"):
        raise _KINDS.get(error, ContainedError)(answer["words"])
    return _unpacked(answer["made"], folder)


def _packed(made: Any, folder: Path, numbers: Iterator[int]) -> Any:
    """Return what JSON can hold, and write each array to a file of its own."""
    if isinstance(made, np.generic):
        made = made.item()
    if made is None or isinstance(made, bool | int | float | str):
        return made
    if isinstance(made, list | tuple):
        return [_packed(each, folder, numbers) for each in made]
    if isinstance(made, Mapping):
        return {"pairs": [[str(k), _packed(each, folder, numbers)] for k, each in made.items()]}
    if isinstance(made, np.ndarray):
        name = f"{next(numbers)}.npy"
        np.save(folder / name, made, allow_pickle=False)
        return {_ARRAY: name}
    raise TypeError(f"a reader returned a {type(made).__name__}")


def _unpacked(made: Any, folder: Path) -> Any:
    if isinstance(made, list):
        return [_unpacked(each, folder) for each in made]
    if not isinstance(made, dict):
        return made
    if _ARRAY not in made:
        return {key: _unpacked(each, folder) for key, each in made["pairs"]}
    file = folder / Path(made[_ARRAY]).name  # its size is limited; pages are read when needed
    return np.asarray(np.load(file, mmap_mode="c", allow_pickle=False))


def _end(number: int, seconds: int, memory: int) -> str:
    """Explain by its signal why a child process ended without a message."""
    if number in (signal.SIGXCPU, signal.SIGALRM):
        return f"it takes more than {seconds:,} seconds"
    if number > 0:
        return f"{signal.Signals(number).name} ends it, where it may take {memory >> 20:,} MiB"
    return "it ends the library"


def _much(memory: int) -> str:
    return f"it takes more than {memory >> 20:,} MiB of memory"


def _work(
    reader: Callable[[], Any], folder: Path, seconds: int, memory: int, output: int
) -> NoReturn:
    """Do the work in a child, write its result or its error to the folder, and end the child."""
    try:
        _limit(seconds, memory, output)
        try:
            with foreign():
                answer = {"made": _packed(reader(), folder, count())}
        except GradauditError as error:
            kind = next(each for each in type(error).__mro__ if each.__name__ in _KINDS)
            answer = {"error": kind.__name__, "words": str(error)}
        except ContainedError as error:
            answer = {"error": ContainedError.__name__, "words": str(error)}
        except Exception as error:
            words = _much(memory) if short_of_memory(error) else one_line(error)
            answer = {"error": ContainedError.__name__, "words": words}
        (folder / _ANSWER).write_text(json.dumps(answer), encoding="utf-8")
    finally:
        os._exit(0)


def _limit(seconds: int, memory: int, output: int) -> None:
    """Limit this process, let signals end it, and drop what it writes to the streams."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(name, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    sys.stdout = sys.stderr = os.fdopen(null, "w")
    signal.alarm(_WAITING * seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (output, output))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    known = (n for n in resource.getrlimit(resource.RLIMIT_NOFILE) if n >= 0)  # -1 is no limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, *known),) * 2)
    if sys.platform == "linux":  # elsewhere the system does not say what is taken
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        taken = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (taken + memory, taken + memory))
