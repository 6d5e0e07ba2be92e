import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import dp_subject
import numpy as np
import pytest
import torch
from forked import Forked
from sessions import ends_within, in_session
from subjects import seeded
from torch import nn

from gradaudit.audits import audits
from gradaudit.audits.dp_audit.game import hypotheses
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.executors import workers
from gradaudit.executors.workers import Task, one_thread, shared_out
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Advance
from gradaudit.report import Measurement
from gradaudit.subject import Subject


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


def test_results_come_in_order_from_processes_of_one_thread_that_the_next_call_has_too() -> None:
    units: list[int] = []
    found = shared_out([telling(number) for number in (3, 1, 2)], 2, units.append, patience=0)
    assert [number for number, _ in found] == [3, 1, 2]
    assert sum(units) == 12
    assert shared_out([threads, threads], 2, units.append, patience=0) == [1, 1]
    more = shared_out([telling(0)] * 3, 2, units.append, patience=0)
    processes = {process for _, process in (*found, *more)}
    assert os.getpid() not in processes
    assert len(processes) <= 2


def test_one_task_or_one_worker_stays_here() -> None:
    for tasks, count in ((1, 4), (3, 1)):
        units: list[int] = []
        found = shared_out([telling(2)] * tasks, count, units.append, patience=0)
        assert {process for _, process in found} == {os.getpid()}
        assert sum(units) == 4 * tasks


def test_the_error_of_a_task_is_raised_without_waiting_for_the_others() -> None:
    begun = time.monotonic()
    with pytest.raises(NotApplicable, match="not this one"):
        shared_out([refusing(number) for number in (0, 1)], 2, lambda units: None, patience=0)
    assert time.monotonic() - begun < 50


def test_what_cannot_be_shipped_is_done_here() -> None:
    lock = threading.Lock()

    def task(advance: Advance) -> int:
        with lock:
            advance(1)
        return os.getpid()

    units: list[int] = []
    assert shared_out([task, task], 2, units.append, patience=0) == [os.getpid()] * 2
    assert sum(units) == 2


def leaving(advance: Advance) -> None:
    os._exit(3)


def test_the_loss_of_a_worker_is_told_in_one_line() -> None:
    with pytest.raises(AuditError, match=r"a worker was lost .*; give workers more memory"):
        shared_out([leaving, telling(1)], 2, lambda units: None, patience=0)
    assert shared_out([telling(1)] * 2, 2, lambda units: None, patience=0)[0][0] == 1


def test_what_starts_workers_lets_them_ignore_interruptions_from_birth() -> None:
    before = signal.getsignal(signal.SIGINT)
    asks = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    with workers._deaf():
        told = subprocess.run([sys.executable, "-c", asks], capture_output=True, check=True)
    assert told.stdout.split() == [b"True"]
    assert signal.getsignal(signal.SIGINT) is before


WAITING = """
    import os, sys, time
    from functools import partial
    from pathlib import Path
    from gradaudit.executors.stopping import stoppable
    from gradaudit.executors.workers import shared_out

    def wait(folder, number, advance):
        (folder / f"{os.getpid()}.pid").touch()
        time.sleep(120)

    if __name__ == "__main__":
        folder = Path(sys.argv[1])
        with stoppable():
            tasks = [partial(wait, folder, n) for n in range(2)]
            shared_out(tasks, 2, lambda units: None, patience=0)
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
    ("send", "number", "status", "words"),
    [
        (os.killpg, signal.SIGINT, 130, "gradaudit: interrupted\n"),  # as a terminal sends it
        (os.kill, signal.SIGTERM, 143, "gradaudit: terminated\n"),
    ],
)
def test_a_signal_ends_the_workers_and_removes_what_is_temporary(
    send: Callable[[int, int], None], number: int, status: int, words: str, tmp_path: Path
) -> None:
    process, workers = begun(tmp_path)
    assert len(in_session(process.pid)) >= 3
    send(process.pid, number)
    _, said = process.communicate()  # ends with the last that holds standard error
    assert (process.returncode, said) == (status, words)
    assert len(workers) == 2
    ends_within(3, process.pid)
    assert not any(worker.exists() for worker in workers)
    assert not list((tmp_path / "temporary").iterdir())


def test_workers_of_a_killed_process_end_by_themselves(tmp_path: Path) -> None:
    process, workers = begun(tmp_path)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate()
    assert len(workers) == 2
    ends_within(3, process.pid)
    assert "Traceback" not in said
    assert not any(worker.exists() for worker in workers)


ENDING = """
    import os, sys
    from pathlib import Path
    from gradaudit.executors.stopping import stoppable
    from gradaudit.executors.workers import shared_out

    sys.path.remove(os.getcwd())  # where a command of its own looks for nothing
    sys.path.append(Path("scripts"))  # which Python passes over

    def iniconfig(advance):
        import iniconfig
        return iniconfig.__file__

    with stoppable():  # without asking for __main__, which no worker runs
        print(*shared_out([iniconfig] * 2, 2, lambda units: None, patience=0), flush=True)
        if sys.argv[1] == "at once":
            os._exit(130)
        raise SystemExit("gradaudit: an error")
"""


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [("error", 1, "gradaudit: an error\n"), ("at once", 130, None)],
)
def test_workers_import_nothing_from_the_folder_and_end_with_the_process_that_started_them(
    how: str, status: int, words: str | None, tmp_path: Path
) -> None:
    (tmp_path / "ending.py").write_text(dedent(ENDING))
    (tmp_path / "iniconfig.py").write_text("print('imported')")
    process = Forked(["ending.py", how], tmp_path)
    told, said = process.communicate()
    assert process.returncode == status
    assert words in (said, None)  # Python's resource tracker warns where a process exits at once
    assert str(tmp_path) not in told
    assert "imported" not in told
    assert len(told.split()) == 2
    ends_within(3, process.pid)


def test_short_work_stays_here_and_the_rest_goes_to_workers() -> None:
    def slow(advance: Advance) -> int:
        time.sleep(0.1)
        return os.getpid()

    found = shared_out([slow] * 5, 2, lambda units: None, patience=0.15)
    assert [process == os.getpid() for process in found] == [True, True, False, False, False]
    assert set(shared_out([slow] * 2, 2, lambda units: None, patience=60)) == {os.getpid()}


def test_work_that_stays_here_is_done_by_one_thread_too() -> None:
    torch.set_num_threads(2)
    try:
        assert shared_out([threads], 1, lambda units: None, patience=0) == [1]
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def pictures(**settings: Any) -> Subject:
    """A smooth convolutional network, and pictures with an attribute."""
    with seeded(0):
        layers = (nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))
        model = nn.Sequential(*layers)
    draw = np.random.default_rng(0)
    records = Records(
        inputs=torch.from_numpy(draw.random((60, 1, 4, 4)).astype(np.float32)),
        labels=torch.arange(60) % 3,
        attributes={"even": Attribute(np.arange(60) % 2, ("no", "yes"))},
    )
    target = Target(model, CrossEntropy())
    return Subject((target,), records, target.layers, attributes=("even",), **settings)


RECORDS = {"floor": 8}
"""Records of audits that measure all they do with fewer than 24."""
SHARED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sensitivity", {}),
    ("copa-metric", {"records": 2}),
    ("floor", {"sigma": 0.1, "directions": 4}),
    ("subspace", {"permutations": 100}),
    ("subspace", {"permutations": 100, "reading": "mean"}),
    ("dp-audit", {"mechanism": "dp:clip=1,sigma=1", "trials": 300, "iterations": 4}),
    ("dp-audit", {"mechanism": "dp:clip=1,sigma=1,noise=laplace", "trials": 100, "restarts": 2}),
)


class Told:
    """How much every task was to do, and did."""

    def __init__(self) -> None:
        self.tasks: dict[str, list[int]] = {}

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        done = self.tasks[description] = [total, 0]

        def advance(units: int) -> None:
            done[1] += units

        yield advance

    def say(self, line: str) -> None:
        raise AssertionError


def rows_of(name: str, options: dict[str, Any], **settings: Any) -> tuple[list[Measurement], Told]:
    told, kind = Told(), audits()[name]
    subject = dp_subject.subject("race") if name == "dp-audit" else pictures()
    about = replace(subject, samples=RECORDS.get(name, 24), memory=1 << 14, **settings)
    return list(kind(kind.Options(**options)).run(about, told)), told


@pytest.mark.parametrize(("name", "options"), SHARED, ids=str)
def test_audits_find_the_same_for_any_number_of_workers(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.0)
    monkeypatch.setattr(hypotheses, "_PORTION", 1)
    shipped: list[Task[Any]] = []
    ship = workers.pickled
    monkeypatch.setattr(workers, "pickled", lambda task: shipped.append(task) or ship(task))
    alone, told = rows_of(name, options)
    assert any(row.status == "measured" for row in alone)
    assert all(row.status != "failed" for row in alone)
    assert told.tasks
    assert all(total == done for total, done in told.tasks.values())
    assert not shipped
    together, of_both = rows_of(name, options, jobs=2)
    assert len(shipped) > 1
    assert together == alone
    assert of_both.tasks == told.tasks
