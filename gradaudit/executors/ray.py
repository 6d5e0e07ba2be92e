"""A Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from gradaudit.core.parts import library
from gradaudit.executors.base import Cluster

T = TypeVar("T")


class Ray(Cluster):
    """The cores of a Ray cluster: ``ray:auto`` on a machine of it, ``ray:ray://HOST:10001`` else.

    Start one with ``ray start --head``. ``ray:`` starts one on this machine. A unit takes one core.
    """

    name = "ray"
    summary = "the cores of a Ray cluster; extra [ray]"
    example = "ray:auto"

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._executor: _RayExecutor | None = None

    def workers(self, jobs: int | None) -> int:
        """Number of cores of the cluster."""
        return jobs or max(1, int(self._connected().cluster_resources().get("CPU", 1)))

    def open(self, workers: int) -> Executor:
        """Returns the cluster's cores, as an executor."""
        if self._executor is None:
            self._executor = _RayExecutor(self._connected())
        return self._executor

    def kill(self) -> None:
        """Cancel running work there."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def _connected(self) -> Any:
        ray = library("ray", self.name, f"--executor {self}")
        if not ray.is_initialized():
            try:
                ray.init(address=self.target or None, log_to_driver=False, logging_level="ERROR")
            except (OSError, RuntimeError, ValueError) as error:
                raise self._refused(error) from error
        return ray


class _RayExecutor(Executor):
    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.running: set[Any] = set()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Start a task of one core."""
        reference = self.ray.remote(num_cpus=1)(function).remote(*args, **kwargs)
        self.running.add(reference)
        future: Future[T] = reference.future()
        future.add_done_callback(lambda _: self.running.discard(reference))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel unfinished tasks."""
        if cancel_futures and self.ray.is_initialized():
            for reference in tuple(self.running):
                self.ray.cancel(reference, force=True)
