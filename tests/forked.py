"""Programs in forks of a process that has imported what they need, and done nothing else.

Each is a process of its own, with streams, signals and an exit status; starting Python anew, and
importing torch, would take it longer than its work.
"""

import atexit
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

from command_line import HANGS
from warmed import run

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "gradaudit.cli",
        "gradaudit.run.runner",
        "gradaudit.run.opening",
        "gradaudit.audits.dp_audit.measure",
        "gradaudit.data.diabetes",
        "gradaudit.executors.workers",
        "pandas",
        "scipy.stats",
        "sklearn.datasets",
        "torch._dynamo",
    ]
)


class Forked:
    """A command, or a file of Python where the first word is one, as ``subprocess.Popen`` has it.

    Args:
        words: of the command, as they stand behind ``gradaudit``.
        folder: where it runs, and where modules are looked for first.
        environment: beside this process's.
    """

    def __init__(self, words: Sequence[str], folder: Path, **environment: str) -> None:
        self._streams, theirs = zip(*(_FORKS.Pipe(duplex=False) for _ in range(2)), strict=True)
        asked = ([*words], folder, {**os.environ, **environment}, theirs)
        self._process = _FORKS.Process(target=_program, args=asked)
        self._process.start()
        for stream in theirs:
            stream.close()
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None where it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process alone."""
        os.kill(self.pid, number)

    def communicate(self, timeout: float = HANGS) -> tuple[str, str]:
        """What it, and whoever it left its streams to, wrote to standard output and error.

        Raises:
            TimeoutError: somebody holds the streams for longer, or it ends no sooner.
        """
        until = time.monotonic() + timeout
        written = {stream: bytearray() for stream in self._streams}
        left = set(written)
        while left:
            ready = wait([*left], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"{self.pid}: its streams are held after {timeout} seconds")
            for stream in left.intersection(ready):
                some = os.read(stream.fileno(), 1 << 16)
                written[stream] += some
                left -= set() if some else {stream}
        self._process.join(max(0.0, until - time.monotonic()))
        if self.returncode is None:
            raise TimeoutError(f"{self.pid}: it runs after {timeout} seconds")
        out, err = (bytes(some).decode() for some in written.values())
        return out, err

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal."""
        return self._process.exitcode


def _program(
    words: list[str], folder: Path, environment: dict[str, str], streams: Sequence[Connection]
) -> None:
    os.setsid()
    signal.alarm(HANGS)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    try:
        if not words[0].endswith(".py"):
            sys.exit(run(words))
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
    finally:  # in the order of a process of its own; one that is forked would leave out the last
        vars(threading)["_shutdown"]()
        atexit._run_exitfuncs()
