"""Work that is given a time ends when it is up, and what goes on afterwards is left alone."""

import os
import signal
import threading
import time
import weakref
from contextlib import suppress

import pytest

from gradaudit.executors.stopping import Stopped, TimeIsUp, _stop, reporting, time_limit


def test_work_ends_when_its_time_is_up() -> None:
    with pytest.raises(TimeIsUp):
        _work_within(0.05, swallowed=0)


def test_whoever_swallows_it_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradaudit.executors.stopping._AGAIN", 0.05)
    with pytest.raises(TimeIsUp):
        _work_within(0.02, swallowed=2)


def _work_within(seconds: float, swallowed: int) -> None:
    with time_limit(seconds):
        for _ in range(swallowed):
            with suppress(TimeIsUp):
                time.sleep(9)
        time.sleep(9)


class _Slow:
    """A context that takes longer to enter and to leave than there is time."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def __enter__(self) -> None:
        time.sleep(0.05)
        self.steps.append("entered")

    def __exit__(self, *_: object) -> None:
        time.sleep(0.05)
        self.steps.append("left")


@pytest.mark.parametrize("seconds", [0.02, 0.07])
def test_a_context_is_entered_and_left_whole(seconds: float) -> None:
    slow = _Slow()
    with pytest.raises(TimeIsUp):
        _passed_and_slept(slow, seconds)
    assert slow.steps == ["entered", "left"]


def _passed_and_slept(slow: _Slow, seconds: float) -> None:
    with time_limit(seconds):
        with slow:
            pass
        time.sleep(9)


class _Gone:
    """What is slow to go, by a finalizer or by its own ``__del__``."""

    def __init__(self, how: str, steps: list[str]) -> None:
        self.steps = steps if how == "__del__" else None
        if how == "finalize":
            weakref.finalize(self, _leave, steps)

    def __del__(self) -> None:
        if self.steps is not None:
            _leave(self.steps)


def _leave(steps: list[str]) -> None:
    time.sleep(0.05)
    steps.append("gone")


@pytest.mark.parametrize("how", ["finalize", "__del__"])
def test_what_goes_is_let_go_before_time_is_up(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[str] = []
    with pytest.raises(TimeIsUp):
        _let_go(how, steps, 0.02)
    assert steps == ["gone"]
    assert capsys.readouterr().err == ""


def _let_go(how: str, steps: list[str], seconds: float | None) -> None:
    with time_limit(seconds):
        _Gone(how, steps)
        time.sleep(1)
        steps.append("never")


@pytest.mark.parametrize("how", ["finalize", "__del__"])
def test_a_signal_waits_for_what_goes(how: str) -> None:
    steps: list[str] = []
    before = signal.signal(signal.SIGTERM, _stop)
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        with pytest.raises(Stopped):
            _let_go(how, steps, None)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps == ["gone"]


def test_afterwards_nobody_is_disturbed() -> None:
    listening = signal.getsignal(signal.SIGALRM)
    with time_limit(0.1):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is listening


def test_other_threads_have_no_limit() -> None:
    done = []

    def work() -> None:
        with time_limit(0.0):
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_where_there_is_something_to_report_a_signal_waits_for_an_import() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM); sum(range(1000)); whole = True"
    imported: dict[str, bool] = {}
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        with pytest.raises(Stopped), reporting():
            _imports(code, imported)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert imported["whole"]


def _imports(code: str, into: dict[str, bool]) -> None:
    exec(compile(code, "<frozen importlib of a test>", "exec"), into)
    time.sleep(9)
