"""Work that is given a time ends when it is up, and what goes on afterwards is left alone."""

import signal
import threading
import time
from contextlib import suppress

import pytest

from gradaudit.stopping import Stopped, TimeIsUp, _stop, reporting, within


def test_work_ends_when_its_time_is_up() -> None:
    with pytest.raises(TimeIsUp):
        _work_within(0.05, swallowed=0)


def test_whoever_swallows_it_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradaudit.stopping._AGAIN", 0.05)
    with pytest.raises(TimeIsUp):
        _work_within(0.02, swallowed=2)


def _work_within(seconds: float, swallowed: int) -> None:
    with within(seconds):
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
    with within(seconds):
        with slow:
            pass
        time.sleep(9)


def test_afterwards_nobody_is_disturbed() -> None:
    listening = signal.getsignal(signal.SIGALRM)
    with within(0.1):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is listening


def test_other_threads_have_no_limit() -> None:
    done = []

    def work() -> None:
        with within(0.0):
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
