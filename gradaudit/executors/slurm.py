"""A Slurm cluster, through submitit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar

from gradaudit.core.parts import library
from gradaudit.errors import UsageError
from gradaudit.executors.base import Cluster

T = TypeVar("T")
_POLL = 0.5
_MANY = 256
_FOLDER = Path("gradaudit-slurm")


class Slurm(Cluster):
    """Slurm jobs, one a unit: ``slurm:partition=NAME,time=60,mem_gb=8``.

    ``folder`` is where submitit writes (``gradaudit-slurm`` in the working directory), which all
    machines must see, and ``time`` the minutes a unit may take; ``cluster=local`` runs the jobs on
    this machine. All other keys are submitit's own: ``mem_gb``, ``slurm_account``, and so on. A
    unit has one core; how many run at a time is Slurm's affair.
    """

    name = "slurm"
    summary = "Slurm jobs, through submitit; extra [slurm]"
    example = "slurm:partition=NAME,time=60"

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._options = dict(self._pair(item) for item in target.split(",") if item)
        self._folder = Path(str(self._options.pop("folder", _FOLDER)))
        self._executor: _JobExecutor | None = None

    def workers(self, jobs: int | None) -> int:
        """Number of jobs that Slurm runs at a time."""
        return jobs or _MANY

    def open(self, workers: int) -> Executor:
        """Submitit's jobs, as an executor."""
        if self._executor is None:
            self._executor = _JobExecutor(self._submitter())
        return self._executor

    def kill(self) -> None:
        """Cancel the jobs."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def _submitter(self) -> Any:
        submitit = library("submitit", self.name, f"--executor {self}")
        options = {**self._options}
        cluster = options.pop("cluster", "slurm")
        renamed = {"partition": "slurm_partition", "time": "timeout_min"}
        options = {renamed.get(key, key): value for key, value in options.items()}
        try:
            submitter = submitit.AutoExecutor(folder=self._folder, cluster=cluster)
            submitter.update_parameters(cpus_per_task=1, **options)
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            raise UsageError(f"--executor {self}: {error}") from error
        return submitter

    def _pair(self, item: str) -> tuple[str, str | int]:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise UsageError(f"--executor {self}: {item!r} is no option; write key=value")
        return key, int(value) if value.isdecimal() else value


class _JobExecutor(Executor):
    """Submitit's jobs as futures, which a thread looks after."""

    def __init__(self, submitter: Any) -> None:
        self.submitter = submitter
        self.running: dict[Future[Any], Any] = {}
        self.lock = threading.Lock()
        self.open = True
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Submit a job."""
        future: Future[T] = Future()
        with self.lock:
            self.running[future] = self.submitter.submit(function, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel unfinished jobs."""
        self.open = False
        with self.lock:
            for job in self.running.values() if cancel_futures else ():
                job.cancel()

    def _watch(self) -> None:
        while self.open:
            with self.lock:
                done = [future for future, job in self.running.items() if job.done()]
                jobs = {future: self.running.pop(future) for future in done}
            for future, job in jobs.items():
                _settle(future, job)
            time.sleep(_POLL)


def _settle(future: Future[Any], job: Any) -> None:
    try:
        future.set_result(job.result())
    except Exception as error:  # whatever ended the job
        future.set_exception(error)
