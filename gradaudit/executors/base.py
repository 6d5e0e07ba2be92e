"""Base class of clusters: each opens an executor with the interface of ``concurrent.futures``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Executor
from typing import ClassVar

from gradaudit.errors import UsageError


class Cluster(ABC):
    """Workers, on this machine or on others.

    Attributes:
        name: the word before the colon of ``--executor``.
        summary: one line for ``gradaudit list``.
        example: a spec that names one.
        here: whether its workers are processes of this machine.
        target: what stands behind the colon.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[str]
    here: ClassVar[bool] = False

    def __init__(self, target: str) -> None:
        self.target = target

    def __str__(self) -> str:
        """The executor as the command line names it."""
        return f"{self.name}:{self.target}" if self.target else self.name

    def workers(self, jobs: int | None) -> int:
        """Number of units that run at a time.

        Args:
            jobs: how many are asked for, if anybody asks.

        Raises:
            UsageError: nobody is there to ask.
        """
        return jobs or 1

    @abstractmethod
    def open(self, workers: int) -> Executor:
        """Returns a working executor: that of the last call, or a new one in its place.

        What it runs is a function of an installed module, with bytes and numbers.

        Raises:
            UsageError: nobody is there.
        """

    @abstractmethod
    def kill(self) -> None:
        """Cancel running work as soon as possible; ``open`` then starts anew."""

    def _refused(self, error: Exception) -> UsageError:
        return UsageError(f"--executor {self}: cannot be reached ({error}); is it running?")


class GivenExecutor(Cluster):
    """An executor that a caller made: unfinished work on it is cancelled, and it is never ended."""

    def __init__(self, target: str, executor: Executor) -> None:
        super().__init__(target)
        self.executor = executor

    def __str__(self) -> str:
        """The name under which it was given."""
        return self.target

    def workers(self, jobs: int | None) -> int:
        """Number of workers that the executor states."""
        return jobs or int(getattr(self.executor, "_max_workers", 2))

    def open(self, workers: int) -> Executor:
        """Return the executor that was given."""
        return self.executor

    def kill(self) -> None:
        """Leave the executor to its maker; units that wait on it were cancelled."""
