"""Workers that are forked, in milliseconds, from a process that has imported what they need.

That process, the server, is started from nothing, so that it has no state of the one that asks,
and computes nothing. The two share a pair of sockets: a request is what a worker inherits, and the
end of the asking process, however it comes, is the server's and its workers'.
"""

import atexit
import gc
import io
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import connection, forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.context import BaseContext, set_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, NamedTuple

POSSIBLE = sys.platform == "linux"
"""Whether processes may be forked that have loaded libraries of the system: not on macOS."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_NEEDED = ("gradaudit.subject", "gradaudit.runner", "scipy.stats", "sklearn.ensemble", "sympy")
"""What workers import; torch takes the last one for derivatives in forward mode."""
_ROOMS = ("audits", "attacks", "families", "planning")
_POLL = 0.5
"""Seconds between two looks at whether the process that asks is still there."""
_ENDING = (signal.SIGINT, signal.SIGTERM)
_STREAMS = (1, 2)
_MOST_INHERITED = 64
_SERVE = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({fd}, {parent})"


class _Server(NamedTuple):
    """One that was started, the socket on which it is asked, and by which process."""

    process: "subprocess.Popen[bytes]"
    asked: socket.socket
    owner: int

    @property
    def lives(self) -> bool:
        """Whether this process has it, and it has not ended."""
        return self.owner == os.getpid() and self.process.poll() is None


_servers: list[_Server] = []
_starting = threading.Lock()


def start() -> int:
    """Start the server where there is none; it imports while this process goes on.

    Returns:
        The number of its process, which is that of its workers' parent.
    """
    with _starting, _undisturbed():
        if not started():
            _servers[:] = [_new()]
        return _servers[-1].process.pid


def started() -> bool:
    """Whether there is a server of this process."""
    return bool(_servers) and _servers[-1].lives


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals that would end this process wait, here and in what is started within."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _new() -> _Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = spawn.get_preparation_data("")["sys_path"]
    serve = _SERVE.format(path=path, module=__name__, fd=theirs.fileno(), parent=os.getpid())
    flags = vars(util)["_args_from_interpreter_flags"]()
    with theirs:
        process = subprocess.Popen(
            [os.fsdecode(spawn.get_executable()), *flags, "-c", serve],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ONE_THREAD},
        )
    server = _Server(process, ours, os.getpid())
    atexit.register(_stop, server)
    return server


def _stop(server: _Server) -> None:
    """End the server and its workers, whatever they do."""
    if server.lives:
        server.process.terminate()
        server.process.wait()


def serve(asked: int, parent: int) -> None:
    """Fork a worker whenever one is asked for, until the process that asks has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    _preload(parent)
    with socket.socket(fileno=asked) as requests:
        _Serving(requests, parent).run()


def _preload(parent: int) -> None:
    """Import what workers need, and look meanwhile whether it is still wanted."""

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(1)

    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _POLL, _POLL)
    gc.disable()
    for name in (*_NEEDED, *_modules()):
        with suppress(Exception):  # a worker says it that needs it
            import_module(name)
    gc.freeze()  # so that workers do not copy it all to look for garbage
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _modules() -> Iterator[str]:
    """Those of the rooms in which each is imported when it is asked for."""
    for room in _ROOMS:
        package = import_module(f"gradaudit.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield module.name


class _Serving:
    """The server's requests, and its workers with the pipes that tell of their ends."""

    def __init__(self, requests: socket.socket, parent: int) -> None:
        self.requests, self.parent = requests, parent
        self.ends: dict[int, int] = {}
        self.signals, self.signalled = os.pipe()

    def run(self) -> None:
        """Serve until the process that asks has ended, or SIGTERM."""
        for end in (self.signals, self.signalled):
            os.set_blocking(end, False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self.signalled)
        try:
            while os.getppid() == self.parent:
                ready = connection.wait([self.requests, self.signals], _POLL)
                if self.signals in ready and signal.SIGTERM in os.read(self.signals, 1 << 16):
                    return
                self._tell_ends()
                if self.requests in ready and not self._served():
                    return
        finally:
            for worker in self.ends:
                os.kill(worker, signal.SIGKILL)
                os.waitpid(worker, 0)

    def _tell_ends(self) -> None:
        """Tell of workers that have ended how they did."""
        while self.ends:
            worker, status = os.waitpid(-1, os.WNOHANG)
            if not worker:
                return
            end = self.ends.pop(worker)
            _tell(end, os.waitstatus_to_exitcode(status))
            os.close(end)

    def _served(self) -> bool:
        """Fork a worker, and say its number; False where nobody asks any more."""
        message, inherited, _, _ = socket.recv_fds(self.requests, 1, _MOST_INHERITED)
        if not message:
            return False
        task, end, *others = inherited
        worker = os.fork()
        if not worker:
            self._work(task, [end, *self.ends.values()], others)
        _tell(end, worker)
        self.ends[worker] = end
        for fd in (task, *others):
            os.close(fd)
        return True

    def _work(self, task: int, server_alone: list[int], inherited: list[int]) -> None:
        """Be a worker, and end."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            self.requests.close()
            for fd in (*server_alone, self.signals, self.signalled):
                os.close(fd)
            _inherited[:] = inherited
            status = vars(spawn)["_main"](task, os.dup(task))
        finally:
            os._exit(status)


def _tell(end: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody listens any more
        vars(forkserver)["write_signed"](end, number)


_inherited: list[int] = []
"""In a worker, the descriptors that it was given."""


class _Given:
    """A descriptor that a worker was given, by its place among them."""

    def __init__(self, place: int) -> None:
        self.place = place

    def detach(self) -> int:
        """It, in the worker."""
        return _inherited[self.place]


class _Popen(popen_forkserver.Popen):
    """A worker of our server, to which the main module is not shown."""

    DupFd = _Given  # type: ignore[assignment]

    def _launch(self, process: "Worker") -> None:
        prepared = spawn.get_preparation_data(process.name)
        for of_main in ("init_main_from_name", "init_main_from_path", "start_method"):
            prepared.pop(of_main, None)
        process.environment = {**os.environ, **ONE_THREAD}
        process.streams = {fd: _Given(self.duplicate_for_child(fd)) for fd in _open_streams()}
        told = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(prepared, told)
            reduction.dump(process, told)
        finally:
            set_spawning_popen(None)
        task = self._ask()
        with open(task, "wb") as stream:
            stream.write(told.getbuffer())
        self.pid = vars(forkserver)["read_signed"](self.sentinel)

    def _ask(self) -> int:
        """Ask for a worker: the pipe to tell it what it is to do; ``sentinel`` tells of its end."""
        task, telling = os.pipe()
        self.sentinel, end = os.pipe()
        self.finalizer = util.Finalize(self, os.close, (self.sentinel,))
        try:
            start()
            socket.send_fds(_servers[-1].asked, [b"."], [task, end, *vars(self)["_fds"]])
        except BaseException:
            os.close(telling)
            raise
        finally:
            os.close(task)
            os.close(end)
        return telling


def _open_streams() -> Iterator[int]:
    for fd in _STREAMS:
        with suppress(OSError):
            os.fstat(fd)
            yield fd


class Worker(BaseProcess):
    """A process with the environment, the path and the output of the one that asks for it.

    Attributes:
        environment: variables.
        streams: what it writes to, by its number.
    """

    _start_method: ClassVar[None] = None
    environment: dict[str, str]
    streams: dict[int, Any]

    @staticmethod
    def _Popen(process: "Worker") -> _Popen:  # noqa: N802 - as the standard library calls it
        return _Popen(process)

    def run(self) -> None:
        """Do what it was started for."""
        os.environ.clear()
        os.environ.update(self.environment)
        for fd, given in self.streams.items():
            os.dup2(given.detach(), fd)
            os.close(given.detach())
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # each its own, as those of processes that are started anew
        super().run()


class Forks(BaseContext):
    """What ``multiprocessing`` offers, with these workers as its processes."""

    _name = "forks"
    Process = Worker


FORKS = Forks()
