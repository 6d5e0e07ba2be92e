"""Ends work early: at a signal, or when its time is up.

A command that is told to ends with one line and the status 128 + signal, and leaves nothing behind.
SIGINT, SIGTERM and SIGHUP (but where it is ignored, as under ``nohup``) raise :class:`Stopped`, so
that workers are ended and temporary files removed on the way out. While modules are imported, where
an exception may be swallowed or turned into another one and nothing is to be tidied up yet, the
process ends at once instead; where there is something to report (:func:`reporting`), ``Stopped``
waits for the end of the import. It waits for the end of finalizers too, of which Python writes an
exception to standard error and goes on.
"""

import _weakrefset
import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType

from gradaudit.errors import Interruption

_WORDS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "ended, as its terminal was closed",
}
_IMPORT = "<frozen importlib"
_DELICATE = {"__enter__", "__exit__"}
"""Functions that must run to their end, as a context entered or left by half is not restored."""
_CALLBACKS = {weakref.__file__, _weakrefset.__file__}
"""Files whose functions run when an object is deleted, besides ``__del__``."""
_SOON, _AGAIN = 0.02, 5.0
"""Seconds until work is interrupted again: from such a function, and where it went on."""


class Stopped(Interruption):
    """The process received a signal to end.

    The status to exit with is 130 after SIGINT, 143 after SIGTERM and 129 after SIGHUP.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number
        self.words = _WORDS[signal.Signals(number)]


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let signals stop the work within, and let the process end undisturbed afterwards.

    ``Stopped`` that nobody catches within becomes one line and the exit status.
    """
    heeded = [number for number in _WORDS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, _stop)
    try:
        yield
    except Stopped as stop:
        _say(stop)
        sys.exit(stop.status)
    finally:
        for number in _WORDS:
            signal.signal(number, signal.SIG_IGN)


class TimeIsUp(Interruption):
    """The time limit of some work is over."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Limit the work within to so many seconds, after which it gets ``TimeIsUp``.

    It is not raised while something is imported, or a context is entered or left, so that work
    that comes later finds all as it was: modes, dtypes, and the levels of ``torch.func``; nor in a
    finalizer, where it would be lost. Only the main thread can be interrupted; elsewhere, and with
    None, there is no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    over = False

    def time_is_up(number: int, frame: FrameType | None) -> None:
        if over:
            return
        if not (_importing(frame) or _delicate(frame) or _finalizing(frame)):
            raise TimeIsUp
        signal.setitimer(signal.ITIMER_REAL, _SOON, _AGAIN)

    before = signal.signal(signal.SIGALRM, time_is_up)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, _SOON), _AGAIN)
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


_work_is_done = threading.Event()
"""Whether there is already something to report."""


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Stop the work at a signal during imports only after the import has finished."""
    _work_is_done.set()
    try:
        yield
    finally:
        _work_is_done.clear()


def _stop(number: int, frame: FrameType | None) -> None:
    stop = Stopped(number)
    if _finalizing(frame) or (_importing(frame) and _work_is_done.is_set()):
        again = threading.Timer(_SOON, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return
    if _importing(frame):
        _say(stop)
        os._exit(stop.status)
    raise stop


def _importing(frame: FrameType | None) -> bool:
    return any(outer.f_code.co_filename.startswith(_IMPORT) for outer in _frames(frame))


def _delicate(frame: FrameType | None) -> bool:
    return any(outer.f_code.co_name in _DELICATE for outer in _frames(frame))


def _finalizing(frame: FrameType | None) -> bool:
    codes = [outer.f_code for outer in _frames(frame)]
    return any(code.co_name == "__del__" or code.co_filename in _CALLBACKS for code in codes)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _say(stop: Stopped) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"gradaudit: {stop.words}\n".encode())
