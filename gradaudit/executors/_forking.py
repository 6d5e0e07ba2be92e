"""Workers that are forked, in milliseconds, from a process that has imported what they need.

That process is a forkserver of ``multiprocessing``, but one of our own: a program may use the one
that all share for something else. It is started from nothing, so that it has no state of the
process that asks, computes nothing, and ends with the last of that process and its workers.
"""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, popen_forkserver, reduction, resource_tracker, spawn, util
from multiprocessing.context import BaseContext, set_spawning_popen
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar

from gradaudit.stopping import removed_at_once

POSSIBLE = sys.platform == "linux"
"""Whether processes may be forked that have loaded libraries of the system: not on macOS."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

_servers: list[Any] = []


def start() -> None:
    """Let the server import what workers need while this process goes on; once.

    Raises:
        OSError: the name of the folder for temporary files is too long for a socket.
    """
    resource_tracker.ensure_running()  # which the server starts otherwise, and lets signals through
    server = _servers[-1] if _servers else _new()
    removed_at_once(Path(util.get_temp_dir()))  # where its socket is
    with _environment(ONE_THREAD), _importing_alike(), uninterrupted():
        server.ensure_running()
    _servers[:] = [server]


def _new() -> Any:
    server = forkserver.ForkServer()
    server.set_forkserver_preload(["gradaudit.executors._preloaded"])
    return server


def started() -> bool:
    """Whether there is a server of this process."""
    return bool(_servers)


os.register_at_fork(after_in_child=_servers.clear)  # it is another's, who waits for its end


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Interruptions wait, and processes that are started within never get any."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _importing_alike() -> Iterator[None]:
    """Processes that are started within import from where this one does, not from its folder.

    What is no string in ``sys.path``, which Python passes over, would end a forkserver.
    """
    before = sys.path
    sys.path = [folder or os.getcwd() for folder in before if isinstance(folder, str)]
    try:
        with _environment({"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(sys.path)}):
            yield
    finally:
        sys.path = before


class _Popen(popen_forkserver.Popen):
    """A process of our server, which is not shown the main module, so that this needs no guard."""

    def _launch(self, process: "Worker") -> None:
        prepared = spawn.get_preparation_data(process.name)
        for of_main in ("init_main_from_name", "init_main_from_path"):
            prepared.pop(of_main, None)
        process.environment = {**os.environ, **ONE_THREAD}
        told = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(prepared, told)
            reduction.dump(process, told)
        finally:
            set_spawning_popen(None)
        start()
        self.sentinel, telling = _servers[-1].connect_to_new_process(vars(self)["_fds"])
        stays = os.dup(telling)  # until this process ends, by which the worker knows that
        self.finalizer = util.Finalize(self, vars(util)["close_fds"], (stays, self.sentinel))
        with open(telling, "wb") as stream:
            stream.write(told.getbuffer())
        self.pid = vars(forkserver)["read_signed"](self.sentinel)


class Worker(BaseProcess):
    """A process that our server forks, with the environment of the one that asks for it."""

    _start_method: ClassVar[None] = None
    environment: dict[str, str]

    @staticmethod
    def _Popen(process: "Worker") -> _Popen:  # noqa: N802 - as the standard library calls it
        return _Popen(process)

    def run(self) -> None:
        """Do what it was started for."""
        os.environ.clear()
        os.environ.update(self.environment)
        super().run()


class _Forking(BaseContext):
    """What ``multiprocessing`` offers, with these workers as its processes."""

    _name = "forkserver"
    Process = Worker


FORKING = _Forking()
