"""Where units of work are done: named, refused, and the same numbers everywhere."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pickle import PicklingError
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch

import gradaudit
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import UsageError
from gradaudit.executors import DEFAULT, dask, load_cluster
from gradaudit.executors.shipping import perform, versions
from gradaudit.executors.workers import Task, shared_out, use_cluster
from gradaudit.progress import Advance

ROOT = Path(__file__).parents[2]
FACTORY = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

def two(): return ProcessPoolExecutor(2, get_context("spawn"))
def none(): return 3
def fails(): raise RuntimeError("no cluster today")
"""


@pytest.fixture(autouse=True)
def _at_home_again() -> Iterator[None]:
    yield
    use_cluster(DEFAULT)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(FACTORY)
    return path


@pytest.fixture(scope="module")
def a_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A real cluster of two workers on this machine, started once for all tests of its kind."""
    kind: str = request.param
    folder = tmp_path_factory.mktemp(kind)
    if kind == "file":
        (folder / "own.py").write_text(FACTORY)
        yield f"{folder / 'own.py'}:two"
    elif kind == "slurm":
        pytest.importorskip("submitit", reason="submitit is not installed: gradaudit[slurm]")
        yield f"slurm:cluster=local,folder={folder / 'jobs'}"
    elif kind == "ray":
        ray = pytest.importorskip("ray", reason="Ray is not installed: gradaudit[ray]")
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        environment = {"env_vars": {"PYTHONPATH": paths}}
        ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment, log_to_driver=False)
        yield "ray:auto"
        ray.shutdown()
    else:
        distributed = pytest.importorskip("distributed", reason="Dask is not installed")
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster:
            yield f"dask:{cluster.scheduler_address}"


everywhere = pytest.mark.parametrize("a_place", ["dask", "ray", "slurm", "file"], indirect=True)


def drawn(number: int) -> Task[tuple[float, int]]:
    """A mean of random numbers, and the process that took it."""

    def task(advance: Advance) -> tuple[float, int]:
        advance(number)
        return float(np.random.default_rng(number).normal(size=99).mean()), os.getpid()

    return task


def refusing(advance: Advance) -> None:
    raise UsageError("not this one")


def lost_once(folder: Path) -> Task[tuple[float, int]]:
    def task(advance: Advance) -> tuple[float, int]:
        advance(5)
        if not list(folder.iterdir()):
            (folder / "lost").touch()
            os._exit(3)
        return 0.0, os.getpid()

    return task


@pytest.mark.slow
@everywhere
def test_results_come_in_order_errors_are_raised_and_what_is_lost_is_done_again(
    a_place: str, tmp_path: Path
) -> None:
    assert use_cluster(a_place) >= 2
    numbers = (2, 1) if a_place.startswith("slurm") else (3, 1, 2)  # there each starts a process
    tasks = [drawn(number) for number in numbers]
    here = [task(lambda units: None)[0] for task in tasks]
    (tmp_path / "once").mkdir()
    # other executors break with their worker, as this machine's do (tests/test_workers.py)
    losing = [lost_once(tmp_path / "once")] if a_place.startswith(("dask", "ray")) else []
    units: list[int] = []
    found = shared_out([*tasks, *losing], 2, units.append)
    assert [value for value, _ in found[: len(here)]] == here
    assert os.getpid() not in {process for _, process in found}
    assert sum(units) == sum(numbers) + 5 * len(losing)
    with pytest.raises(UsageError, match="not this one"):
        shared_out([refusing, refusing], 2, units.append)


def records() -> Records:
    draw = np.random.default_rng(0)
    inputs = torch.from_numpy(draw.normal(size=(400, 4)).astype(np.float32))
    return Records(
        inputs=inputs,
        labels=(inputs[:, 0] > 0).long(),
        classes=("no", "yes"),
        attributes={"tall": Attribute((inputs[:, 1] > 0).long().numpy(), ("no", "yes"))},
    )


@pytest.mark.slow
@pytest.mark.parametrize("a_place", ["dask", "ray"], indirect=True)
def test_an_audit_finds_the_same_numbers_there(a_place: str) -> None:
    options = {"vinfo": {"repeats": 2, "batches": 12, "family": ["logistic"], "correlation": False}}
    rows = [
        gradaudit.audit(
            "zoo:mlp?inputs=4&hidden=3&classes=2",
            records(),
            audits=options,
            attributes=["tall"],
            executor=place,
        ).measurements
        for place in (DEFAULT, a_place)
    ]
    assert rows[0] == rows[1]
    assert any(row.status == "measured" for row in rows[0])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("dusk:tcp://a", "--executor dusk:tcp://a: no such executor (did you mean 'dask'?)"),
        ("joblib:4", "--executor joblib:4: takes nothing; give the number as --jobs"),
        ("slurm:partition", "'partition' is no option; write key=value"),
        ("OWN:none", "returned a int; return a concurrent.futures.Executor"),
        ("OWN:fails", "calling it failed with RuntimeError: no cluster today"),
        ("OWN:absent", "there is no 'absent' in it"),
    ],
)
def test_what_cannot_be_had_is_told_in_one_line(spec: str, words: str, own: Path) -> None:
    with pytest.raises(UsageError) as told:
        load_cluster(spec.replace("OWN", str(own)))
    assert words in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", ["dask", "ray", "slurm"])
def test_an_extra_that_is_missing_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("distributed", "ray", "submitit"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"not installed; install gradaudit\[{kind}\]"):
        load_cluster(f"{kind}:").open(2)


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed: gradaudit[dask]")
    monkeypatch.setattr(dask, "_PATIENCE", 0.2)
    with pytest.raises(UsageError, match=r"--executor dask:tcp:\S+: cannot be reached"):
        use_cluster("dask:tcp://127.0.0.1:1")


def performed(task: Task[Any], **other: str) -> tuple[Any, int, Exception | None]:
    given = perform(cloudpickle.dumps(task), "no such file", 0, {**versions(), **other})
    opened: tuple[Any, int, Exception | None] = cloudpickle.loads(given)
    return opened


def test_a_worker_with_other_versions_is_refused() -> None:
    value, units, error = performed(drawn(3), numpy="1.0")
    assert (value, units) == (None, 0)
    assert isinstance(error, UsageError)
    assert f"numpy {np.__version__}, and this machine has 1.0" in str(error)
    assert performed(drawn(3))[1:] == (3, None)


def test_what_a_worker_cannot_send_back_says_so() -> None:
    assert isinstance(performed(lambda advance: (n for n in "ab"))[2], PicklingError)


class Counting(ThreadPoolExecutor):
    """Threads, and how often they were asked."""

    asked = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        return super().submit(*args, **kwargs)


def test_an_executor_in_memory_is_used_as_it_is_and_left_open() -> None:
    with Counting(2) as executor:
        assert use_cluster(executor) == 2
        assert use_cluster(executor, 5) == 5
        found = shared_out([drawn(number) for number in (1, 2, 3)], 2, lambda units: None)
        with pytest.raises(UsageError, match="not this one"):
            shared_out([refusing, refusing], 2, lambda units: None)
        assert {process for _, process in found} == {os.getpid()}
        assert executor.asked == 5
        assert executor.submit(len, "ab").result() == 2


class Repeating(ThreadPoolExecutor):
    """One thread, which does the first task again after the next one, as a cluster may."""

    first: tuple[Any, ...] = ()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        asked = super().submit(fn, *args, **kwargs)
        if self.first:
            super().submit(*self.first)
        self.first = self.first or (fn, *args)
        return asked


@pytest.mark.slow
def test_what_is_done_again_is_counted_once() -> None:
    def slow(advance: Advance) -> None:
        advance(7)
        time.sleep(0.3)

    units: list[int] = []
    with Repeating(1) as executor:
        use_cluster(executor)
        shared_out([slow, drawn(2), drawn(1)], 2, units.append)
    assert sum(units) == 7 + 2 + 1


TOLD = """
from concurrent.futures import ThreadPoolExecutor

class Told(ThreadPoolExecutor):
    def shutdown(self, *args, **named):
        print("shut down")
        super().shutdown(*args, **named)
"""


@pytest.mark.slow
def test_what_a_file_opened_is_shut_down_when_the_process_ends(tmp_path: Path) -> None:
    """Python's own pool of processes says something of its own where nobody does."""
    (tmp_path / "told.py").write_text(TOLD)
    code = "from gradaudit.executors.user_file import UserFile; UserFile('told.py:Told')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", code]
    said = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "shut down\n", "")
