"""Programs in forks of a process that has imported what they need, and done nothing else.

Each is a process of its own, with streams, signals and an exit status; starting Python anew, and
importing torch, would take it longer than its work.
"""

import os
import runpy
import signal
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from command_line import HANGS
from warmed import run

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "gradaudit.cli",
        "gradaudit.runner",
        "gradaudit.subject",
        "gradaudit.audits.dp_audit.measure",
        "gradaudit.data.diabetes",
        "gradaudit.executors.joblib",
        "pandas",
        "scipy.stats",
        "sklearn.datasets",
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

    def communicate(self) -> tuple[str, str]:
        """What it, and whoever it left its streams to, wrote to standard output and error."""
        out, err = map(_rest, self._streams)
        self._process.join()
        return out, err

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal."""
        return self._process.exitcode


def _rest(stream: Connection) -> str:
    with open(stream.fileno(), "rb", closefd=False) as file:
        return file.read().decode()


def _program(
    words: list[str], folder: Path, environment: dict[str, str], streams: Sequence[Connection]
) -> None:
    os.setsid()
    signal.alarm(HANGS)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.chdir(folder)
    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    if not words[0].endswith(".py"):
        sys.exit(run(words))
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
