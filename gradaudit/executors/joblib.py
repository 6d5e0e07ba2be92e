"""Processes of this machine, by joblib's loky."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from gradaudit.core.parts import library
from gradaudit.errors import UsageError
from gradaudit.executors.base import Cluster

_IDLE = 600
"""Seconds after which idle workers end."""
_POLL = 0.5
"""Seconds between a worker's checks that its parent process is still there."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_LEAK = "_MAX_MEMORY_LEAK_SIZE"
"""loky's name of the bytes by which a worker may grow."""


class Joblib(Cluster):
    """Processes on this machine, ``--jobs`` of them, with one thread each.

    They are joblib's (loky), kept from one call to the next for as long as as many are asked for.
    Workers ignore interruptions, which their parent process turns into their end, and end by
    themselves where their parent process was killed.
    """

    name = "joblib"
    summary = "processes of this machine, as many as --jobs says"
    example = "joblib"
    here = True

    def __init__(self, target: str) -> None:
        if target:
            raise UsageError(
                f"--executor joblib:{target}: takes nothing; give the number as --jobs"
            )
        super().__init__(target)
        self._executor: Any = None

    def open(self, workers: int) -> Executor:
        """Returns the workers of the last call, or new ones in their place."""
        with _deaf():
            self._executor = library(
                "joblib.externals.loky", self.name, f"--executor {self}"
            ).get_reusable_executor(
                workers,
                timeout=_IDLE,
                initializer=_begin,
                initargs=(os.getpid(),),
                env=_ONE_THREAD,
            )
            self._executor.submit(int)  # which starts the processes
        return self._executor  # type: ignore[no-any-return]

    def kill(self) -> None:
        """End the processes, whatever they are doing."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)


@contextmanager
def _deaf() -> Iterator[None]:
    """Let processes that are started within ignore interruptions from their start.

    Only the main thread may say who listens to them.
    """
    main = threading.current_thread() is threading.main_thread()
    listening = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if listening is not None:
            signal.signal(signal.SIGINT, listening)


def _begin(parent: int) -> None:
    """Leave interruptions and warnings to the parent process, and end when it is killed.

    loky ends a worker that grew by 300 MB, for which torch alone is enough; not one of ours.
    """

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL)
        os._exit(1)

    vars(import_module("joblib.externals.loky.process_executor"))[_LEAK] = sys.maxsize
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    threading.Thread(target=follow, daemon=True).start()
