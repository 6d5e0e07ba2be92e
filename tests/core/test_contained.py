"""Work in a child process comes back as it is, and ends at its limits."""

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradaudit.core import contained as module
from gradaudit.core.contained import ContainedError, read
from gradaudit.errors import CheckpointError, foreign
from gradaudit.executors.stopping import TimeIsUp, time_limit


class Panic(BaseException):
    """What a library in Rust raises."""


def fail(error: BaseException) -> Any:
    raise error


def spin() -> None:
    while True:
        pass


def test_results_are_those_of_the_work_and_nothing_of_it_stays(
    capfd: pytest.CaptureFixture[str],
) -> None:
    here: list[int] = []
    made = read(lambda: (here.append(1), print("loud"), np.arange(3.0))[-1])
    np.testing.assert_array_equal(made, [0, 1, 2])
    assert here == []
    assert capfd.readouterr() == ("", "")


def test_text_numbers_and_arrays_come_back_as_they_were() -> None:
    made = {
        "a": np.arange(6.0).reshape(2, 3),
        "none": np.empty((0, 3), np.int8),
        "words": np.array(["é", "日本"]),
        "inside": [1, 2.5, None, True, "x", {"array": np.array(7), "pairs": "text"}],
    }
    back = read(lambda: made)
    assert list(back) == list(made)
    for name in ("a", "none", "words"):
        np.testing.assert_array_equal(back[name], made[name], strict=True)
    assert back["inside"][:5] == made["inside"][:5]
    assert (int(back["inside"][5]["array"]), back["inside"][5]["pairs"]) == (7, "text")
    back["a"][0] = 1  # in this process alone


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: fail(Panic("at the disco")), "Panic: at the disco"),
        (lambda: sys.exit(3), "SystemExit: 3"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: os._exit(0), "it ends the library"),
        (lambda: lambda: 1, "TypeError: a reader returned a function"),
        (lambda: os.kill(os.getpid(), 11), "SIGSEGV ends it, where it may take 640 MiB"),
        (lambda: os.kill(os.getpid(), 9), "SIGKILL ends it, where it may take 640 MiB"),
        (os.abort, "SIGABRT ends it, where it may take 640 MiB"),
        (lambda: bytearray(800 << 20), "it takes more than 640 MiB of memory"),
    ],
    ids=["panic", "exit", "error", "end", "no data", "crash", "kill", "abort", "memory"],
)
def test_the_end_of_work_is_an_error_in_words(work: Callable[[], object], words: str) -> None:
    with pytest.raises(ContainedError) as caught:
        read(work)
    assert re.fullmatch(
        re.escape(words) + r"( \(test_contained.py, line \d+\))?", str(caught.value)
    )


def test_work_has_few_files_open() -> None:
    assert read(lambda: len([os.open(os.devnull, os.O_RDONLY) for _ in range(500)])) == 500
    with pytest.raises(ContainedError, match=r"Too many open files|it ends the library"):
        read(lambda: len([os.open(os.devnull, os.O_RDONLY) for _ in range(module.FILES)]))


@pytest.mark.slow
@pytest.mark.parametrize(("work", "waiting"), [(spin, 99), (lambda: time.sleep(99), 1)])
def test_work_without_end_is_ended_by_its_processor_time_or_by_the_clock(
    work: Callable[[], None], waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 1)
    monkeypatch.setattr(module, "_WAITING", waiting)
    with pytest.raises(ContainedError, match="it takes more than 1 seconds"):
        read(work)


@pytest.mark.slow
def test_memory_grows_with_what_is_read() -> None:
    assert read(lambda: len(bytearray(800 << 20)), memory=400 << 20) == 800 << 20


def test_errors_for_people_keep_their_kind() -> None:
    with pytest.raises(CheckpointError, match=r"^x: is none$"):
        read(lambda: fail(CheckpointError("x: is none")))


def test_a_child_ends_where_its_parent_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, children = os.fork, list[int]()

    def noted() -> int:
        child = fork()
        children.append(child)
        return child

    monkeypatch.setattr(os, "fork", noted)
    with pytest.raises(TimeIsUp), time_limit(0.2):
        read(spin)
    (child,) = children
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_whatever_code_of_others_raises_is_an_exception_of_that_name() -> None:
    with pytest.raises(Exception, match=r"^at the disco$") as caught, foreign():
        raise Panic("at the disco")
    assert type(caught.value).__name__ == "Panic"
    with pytest.raises(TimeIsUp), foreign():
        raise TimeIsUp


def test_work_writes_no_large_files(tmp_path: Path) -> None:
    path, limit = tmp_path / "left", module.FILE_BYTES
    assert read(lambda: path.write_bytes(bytes(limit))) == limit
    with pytest.raises(ContainedError, match=r"OSError: .*File too large"):
        read(lambda: path.write_bytes(bytes(limit + 1)))
    assert path.stat().st_size == limit
