import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from gradaudit.attacks.reconstruction.workers import Task, shared_out
from gradaudit.errors import NotApplicable
from gradaudit.progress import Advance


def telling(number: int) -> Task[tuple[int, int, int]]:
    """A function of its own, which travels whole: workers cannot import this file."""

    def task(advance: Advance) -> tuple[int, int, int]:
        for _ in range(number):
            advance(2)
        return number, os.getpid(), torch.get_num_threads()

    return task


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
    assert [number for number, _, _ in found] == [3, 1, 2]
    assert os.getpid() not in {process for _, process, _ in found}
    assert {threads for _, _, threads in found} == {1}
    assert sum(units) == 12


def test_one_task_or_one_worker_stays_here() -> None:
    for tasks, workers in ((1, 4), (3, 1)):
        units: list[int] = []
        found = shared_out([telling(2)] * tasks, workers, units.append)
        assert {process for _, process, _ in found} == {os.getpid()}
        assert sum(units) == 4 * tasks


def test_the_error_of_a_task_is_raised_without_waiting_for_the_others() -> None:
    begun = time.monotonic()
    with pytest.raises(NotApplicable, match="not this one"):
        shared_out([refusing(number) for number in (0, 1)], 2, lambda units: None)
    assert time.monotonic() - begun < 50


def test_an_interruption_ends_the_workers(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(
        dedent("""
            import os, sys, time
            from functools import partial
            from pathlib import Path
            from gradaudit.attacks.reconstruction.workers import shared_out

            def wait(folder, number, advance):
                (folder / f"{os.getpid()}.pid").touch()
                time.sleep(120)

            folder = Path(sys.argv[1])
            try:
                shared_out([partial(wait, folder, n) for n in range(2)], 2, lambda units: None)
            except KeyboardInterrupt:
                sys.exit(130)
        """)
    )
    command = [sys.executable, str(tmp_path / "waiting.py"), str(tmp_path)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
    while len(started := sorted(tmp_path.glob("*.pid"))) < 2 and process.poll() is None:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130
    assert words == b""
    assert not any(Path(f"/proc/{path.stem}").exists() for path in started)
