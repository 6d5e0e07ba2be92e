"""Where units of work are done: named, refused, and the same numbers everywhere."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from pickle import PicklingError

import numpy as np
import pytest
import torch

import gradaudit
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import UsageError
from gradaudit.executors import workers
from gradaudit.executors.workers import DEFAULT, Task, perform, shared_out, use_executor
from gradaudit.progress import Advance

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _at_home_again() -> Iterator[None]:
    yield
    use_executor(DEFAULT)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    """A real cluster of two workers on this machine, started once for all tests of its kind."""
    if request.param == "ray":
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


everywhere = pytest.mark.parametrize("cluster", ["dask", "ray"], indirect=True)


def drawn(number: int) -> Task[tuple[float, int]]:
    """A mean of random numbers, and the process that took it."""

    def task(advance: Advance) -> tuple[float, int]:
        advance(number)
        return float(np.random.default_rng(number).normal(size=99).mean()), os.getpid()

    return task


def refusing(advance: Advance) -> None:
    raise UsageError("not this one")


@pytest.mark.slow
@everywhere
def test_results_come_in_order_and_errors_are_raised(cluster: str) -> None:
    assert use_executor(cluster) >= 2
    assert use_executor(cluster, 3) == 3
    numbers = (3, 1, 2)
    here = [drawn(number)(lambda units: None)[0] for number in numbers]
    units: list[int] = []
    found = shared_out([drawn(number) for number in numbers], 2, units.append, patience=0)
    assert [value for value, _ in found] == here
    assert os.getpid() not in {process for _, process in found}
    assert sum(units) == sum(numbers)
    with pytest.raises(UsageError, match="not this one"):
        shared_out([refusing, refusing], 2, units.append, patience=0)


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
@everywhere
def test_an_audit_finds_the_same_numbers_there(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.0)
    options = {"vinfo": {"repeats": 2, "batches": 12, "family": ["logistic"], "correlation": False}}
    rows = [
        gradaudit.audit(
            "zoo:mlp?inputs=4&hidden=3&classes=2",
            records(),
            audits=options,
            attributes=["tall"],
            executor=executor,
        ).measurements
        for executor in (DEFAULT, cluster)
    ]
    assert rows[0] == rows[1]
    assert any(row.status == "measured" for row in rows[0])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("dusk:tcp://a", "--executor dusk:tcp://a: no such executor (did you mean 'dask'?)"),
        ("loky:4", "--executor loky:4: no such executor"),
        ("dask", "--executor dask: no such executor"),
        ("slurm:partition=a", "name one of: loky, dask:tcp://HOST:8786, ray:auto"),
    ],
)
def test_what_cannot_be_had_is_told_in_one_line(spec: str, words: str) -> None:
    with pytest.raises(UsageError) as told:
        use_executor(spec)
    assert words in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", ["dask", "ray"])
def test_an_extra_that_is_missing_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("distributed", "ray"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"not installed; install gradaudit\[{kind}\]"):
        use_executor(f"{kind}:auto")


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed: gradaudit[dask]")
    monkeypatch.setattr(workers, "_ANSWER", 0.2)
    with pytest.raises(UsageError, match=r"--executor dask:tcp:\S+: cannot be reached"):
        use_executor("dask:tcp://127.0.0.1:1")


def test_a_worker_with_other_versions_is_refused() -> None:
    versions, task = workers._versions(), workers.pickled(drawn(3))
    with pytest.raises(UsageError, match=rf"numpy {np.__version__}, and this machine has 1\.0"):
        perform(7, task, {**versions, "numpy": "1.0"}, "elsewhere")
    assert perform(7, task, versions, "elsewhere")[::2] == (7, 3)


@pytest.mark.slow
def test_what_a_worker_cannot_send_back_says_so() -> None:
    tasks = [lambda advance: (n for n in "ab")] * 2
    with pytest.raises((PicklingError, TypeError), match="generator"):
        shared_out(tasks, 2, lambda units: None, patience=0)
