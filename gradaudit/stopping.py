"""How work ends before it is done: when the command is told to, or when its time is up.

A command that is told to ends with one line and the status 128 + signal, and leaves nothing behind.
SIGINT and SIGTERM raise :class:`Stopped`, so that workers are ended and temporary files removed on
the way out. While modules are imported, where an exception may be swallowed or turned into another
one and nothing is to be tidied up yet, the process ends at once instead.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_IMPORT = "<frozen importlib"
_SOON, _AGAIN = 0.02, 5.0
"""Seconds until work is told again that its time is up: while it imports, and where it went on."""


class Stopped(BaseException):
    """The process was told to end.

    The status to exit with is 130 after SIGINT and 143 after SIGTERM.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number
        self.words = _WORDS[signal.Signals(number)]


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let signals stop what runs within; afterwards the process ends undisturbed.

    ``Stopped`` that nobody catches within becomes one line and the exit status.
    """
    for number in _WORDS:
        signal.signal(number, _stop)
    try:
        yield
    except Stopped as stop:
        _say(stop)
        sys.exit(stop.status)
    finally:
        for number in _WORDS:
            signal.signal(number, signal.SIG_IGN)


class TimeIsUp(BaseException):
    """The time that some work was given is over."""


@contextlib.contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Give what runs within so many seconds, after which ``TimeIsUp`` is raised in it.

    Only the main thread can be interrupted; elsewhere, and with None, there is no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, _SOON), _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _time_is_up(number: int, frame: FrameType | None) -> None:
    if _importing(frame):
        signal.setitimer(signal.ITIMER_REAL, _SOON, _AGAIN)
    else:
        raise TimeIsUp


def _stop(number: int, frame: FrameType | None) -> None:
    stop = Stopped(number)
    if _importing(frame):
        _say(stop)
        os._exit(stop.status)
    raise stop


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT):
            return True
        frame = frame.f_back
    return False


def _say(stop: Stopped) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"gradaudit: {stop.words}\n".encode())
