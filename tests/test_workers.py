import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from forked import Forked

from gradaudit.errors import AuditError, NotApplicable
from gradaudit.executors.joblib import _deaf
from gradaudit.progress import Advance
from gradaudit.units import Units
from gradaudit.workers import TRIES, Task, shared_out


def telling(number: int) -> Task[tuple[int, int]]:
    """A function of its own, which travels whole: workers cannot import this file."""

    def task(advance: Advance) -> tuple[int, int]:
        for _ in range(number):
            advance(2)
        return number, os.getpid()

    return task


def threads(advance: Advance) -> int:
    return torch.get_num_threads()


def refusing(number: int) -> Task[int]:
    def task(advance: Advance) -> int:
        if number == 1:
            raise NotApplicable("not this one")
        time.sleep(60)
        return number

    return task


def test_results_come_in_order_from_other_processes_of_one_thread() -> None:
    units: list[int] = []
    found = shared_out([telling(number) for number in (3, 1, 2)], 2, units.append)
    assert [number for number, _ in found] == [3, 1, 2]
    assert os.getpid() not in {process for _, process in found}
    assert sum(units) == 12
    assert shared_out([threads, threads], 2, units.append) == [1, 1]


def test_one_task_or_one_worker_stays_here() -> None:
    for tasks, workers in ((1, 4), (3, 1)):
        units: list[int] = []
        found = shared_out([telling(2)] * tasks, workers, units.append)
        assert {process for _, process in found} == {os.getpid()}
        assert sum(units) == 4 * tasks


def test_the_error_of_a_task_is_raised_without_waiting_for_the_others() -> None:
    begun = time.monotonic()
    with pytest.raises(NotApplicable, match="not this one"):
        shared_out([refusing(number) for number in (0, 1)], 2, lambda units: None)
    assert time.monotonic() - begun < 50


def test_workers_are_kept_for_the_next_call() -> None:
    calls = [
        {process for _, process in shared_out([telling(0)] * 3, workers, lambda units: None)}
        for workers in (2, 2, 3)
    ]
    assert len(calls[0] | calls[1]) <= 2
    assert len(calls[0] | calls[1] | calls[2]) <= 3


def test_what_cannot_be_shipped_is_done_here() -> None:
    lock = threading.Lock()

    def task(advance: Advance) -> int:
        with lock:
            advance(1)
        return os.getpid()

    units: list[int] = []
    assert shared_out([task, task], 2, units.append) == [os.getpid()] * 2
    assert sum(units) == 2


def leaving(folder: Path, times: int) -> Task[int]:
    """Ends its worker so often, having told of units."""

    def task(advance: Advance) -> int:
        advance(5)
        left = len(list(folder.iterdir()))
        if left < times:
            (folder / str(left)).touch()
            os._exit(3)
        return left

    return task


def test_a_task_whose_worker_is_lost_is_done_by_another_and_its_units_taken_back(
    tmp_path: Path,
) -> None:
    units: list[int] = []
    assert shared_out([leaving(tmp_path, TRIES - 1), telling(1)], 2, units.append)[0] == TRIES - 1
    assert sum(units) == 5 + 2


def test_a_task_that_is_lost_with_every_worker_is_given_up(tmp_path: Path) -> None:
    units: list[int] = []
    with pytest.raises(AuditError, match=f"lost {TRIES} times"):
        shared_out([leaving(tmp_path, 9), leaving(tmp_path, 9)], 2, units.append)
    assert sum(units) == 0


def test_what_starts_workers_lets_them_ignore_interruptions_from_birth() -> None:
    before = signal.getsignal(signal.SIGINT)
    asks = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    with _deaf():
        told = subprocess.run([sys.executable, "-c", asks], capture_output=True, check=True)
    assert told.stdout.split() == [b"True"]
    assert signal.getsignal(signal.SIGINT) is before


WAITING = """
    import os, sys, time
    from functools import partial
    from pathlib import Path
    from gradaudit.stopping import stoppable
    from gradaudit.workers import shared_out

    def wait(folder, number, advance):
        (folder / f"{os.getpid()}.pid").touch()
        time.sleep(120)

    if __name__ == "__main__":
        folder = Path(sys.argv[1])
        with stoppable():
            shared_out([partial(wait, folder, n) for n in range(2)], 2, lambda units: None)
"""


def begun(folder: Path) -> tuple[Forked, list[Path]]:
    """A process whose two workers are at work, and what stands for each worker in /proc."""
    (folder / "waiting.py").write_text(dedent(WAITING))
    (folder / "temporary").mkdir()
    process = Forked(["waiting.py", str(folder)], folder, TMPDIR=str(folder / "temporary"))
    while len(started := sorted(folder.glob("*.pid"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    return process, [Path("/proc") / path.stem for path in started]


@pytest.mark.parametrize(
    ("number", "everybody", "status", "words"),
    [
        (signal.SIGINT, True, 130, "gradaudit: interrupted\n"),
        (signal.SIGINT, False, 130, "gradaudit: interrupted\n"),
        (signal.SIGTERM, False, 143, "gradaudit: terminated\n"),
    ],
)
def test_a_signal_ends_the_workers_and_removes_what_is_temporary(
    number: signal.Signals, everybody: bool, status: int, words: str, tmp_path: Path
) -> None:
    process, workers = begun(tmp_path)
    (os.killpg if everybody else os.kill)(process.pid, number)
    _, said = process.communicate()  # ends with the last that holds standard error
    assert (process.returncode, said) == (status, words)
    assert len(workers) == 2
    assert not any(worker.exists() for worker in workers)
    assert not list((tmp_path / "temporary").iterdir())


def test_workers_of_a_killed_process_end_by_themselves(tmp_path: Path) -> None:
    process, workers = begun(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(workers) == 2
    for _ in range(100):
        if not any(worker.exists() for worker in workers):
            return
        time.sleep(0.1)
    raise AssertionError("workers go on")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_kept_is_not_made_again_and_advances_as_much(tmp_path: Path, workers: int) -> None:
    first: list[int] = []
    made = shared_out([telling(3), telling(1)], workers, first.append, Units(tmp_path))
    again: list[int] = []
    tasks = [refusing(1), refusing(1), telling(2)]
    kept = shared_out(tasks, workers, again.append, Units(tmp_path))
    assert kept[:2] == made
    assert kept[2][0] == 2
    assert (sum(first), sum(again)) == (8, 12)
