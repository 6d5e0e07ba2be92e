"""A Dask cluster."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from gradaudit.core.parts import library
from gradaudit.executors.base import Cluster

_PATIENCE = 30
"""Seconds within which a scheduler has to answer."""


class Dask(Cluster):
    """The workers of a Dask scheduler, by its address or the file (.json) that it wrote.

    Start one with ``dask scheduler`` and ``dask worker tcp://HOST:8786 --nthreads 1``. Without an
    address, ``dask:``, a cluster is started on this machine. Units of a worker that is lost go to
    another one.
    """

    name = "dask"
    summary = "the workers of a Dask scheduler; extra [dask]"
    example = "dask:tcp://HOST:8786"

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._client: Any = None
        self._executor: Any = None

    def workers(self, jobs: int | None) -> int:
        """Number of threads in all workers."""
        return jobs or max(1, sum(self._connected().nthreads().values()))

    def open(self, workers: int) -> Executor:
        """Returns the scheduler's client, as an executor."""
        if self._executor is None:
            self._executor = self._connected().get_executor(pure=False)
        return self._executor  # type: ignore[no-any-return]

    def kill(self) -> None:
        """Cancel running work there, and disconnect."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        if self._client is not None:
            self._client.close()
        self._client = self._executor = None

    def _connected(self) -> Any:
        if self._client is None:
            distributed = library("distributed", self.name, f"--executor {self}")
            options: dict[str, Any] = {"timeout": _PATIENCE, "set_as_default": False}
            if self.target.endswith(".json"):
                options["scheduler_file"] = self.target
            elif self.target:
                options["address"] = self.target
            else:
                options |= {"processes": True, "threads_per_worker": 1, "dashboard_address": None}
            try:
                self._client = distributed.Client(**options)
            except (OSError, ValueError, TimeoutError) as error:
                raise self._refused(error) from error
        return self._client
