"""Shares out tasks among workers; results do not depend on how many workers there are.

All parallel work runs in one place, which ``use_cluster`` chooses (``gradaudit.executors``): the
processes of this machine, unless the user names another.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from pickle import PicklingError
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from gradaudit.errors import AuditError, one_line
from gradaudit.executors import DEFAULT, Cluster, load_cluster
from gradaudit.executors.shipping import opened, perform, pickled, ship_by_value, versions
from gradaudit.executors.units import NOTHING_KEPT, Units, Word
from gradaudit.progress import Advance

log = logging.getLogger(__name__)

T = TypeVar("T")
Task = Callable[[Advance], T]
"""A task, which reports how many of its units are done."""
Numbered = Iterator[tuple[int, Task[T]]]
Given = Callable[[int, Any], None]
"""Function that receives a task's number and result as soon as it is done."""

TRIES = 3
"""Largest number of times that a task is given out again after its worker was lost."""
COSTS = 3.0
"""Seconds of work below which starting workers may not pay off."""
PATIENCE = 0.5
"""Seconds of work of unknown length that this process does before it starts workers."""
_POLL = 0.2
"""Seconds between two checks of the workers' progress."""
_AHEAD = 2
"""Number of tasks that are queued for each worker."""


@dataclass
class _ChosenExecutor:
    """The executor that was named last, and its workers."""

    named: str | Executor = DEFAULT
    cluster: Cluster = field(default_factory=lambda: load_cluster(DEFAULT))


@cache
def _chosen_executor() -> _ChosenExecutor:
    return _ChosenExecutor()


def use_cluster(executor: str | Executor, jobs: int | None = None) -> int:
    """Do all further work on this cluster (``gradaudit.executors.load_cluster``).

    Args:
        executor: as ``--executor`` names it, or one of Python's own interface.
        jobs: how many units are worked on at a time, if anybody asks for a number.

    Returns:
        That number, which may be the place's own.

    Raises:
        UsageError: there is no such place, or nobody answers there.
    """
    now = _chosen_executor()
    if now.named != executor:
        cluster = load_cluster(executor)
        now.cluster.kill()
        now.named, now.cluster = executor, cluster
    return now.cluster.workers(jobs)


def on_this_machine() -> bool:
    """Whether units of work run in processes of this machine, which see the same files."""
    return _chosen_executor().cluster.here


@contextmanager
def one_thread() -> Iterator[None]:
    """Returns a context, or decorator, in which numerical libraries use one thread.

    Sums depend on the number of threads; torch has pools that nothing else can limit.
    """
    torch = sys.modules.get("torch")
    threads = 1 if torch is None else torch.get_num_threads()
    with _pools(len(sys.modules)).limit(limits=1):
        if torch is None or threads == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _pools(modules: int) -> ThreadpoolController:
    """Returns the libraries' thread pools, searched again where more modules are loaded."""
    return ThreadpoolController()


def shared_out(
    tasks: Iterable[Task[T]],
    workers: int,
    advance: Advance,
    units: Units = NOTHING_KEPT,
    seconds: float | None = math.inf,
    given: Given = lambda number, value: None,
    count: int | None = None,
) -> list[T]:
    """Returns every task's result in order, from as many workers of one thread each.

    The tasks stay in this process, with one thread too, where one worker is enough, where they are
    short, and where what they need, such as a user's model, cannot be shipped to another one. An
    exception of a task, and an interruption, end the work at once. A task whose worker is lost is
    given to another one.

    Args:
        tasks: independent of one another; those that are made one by one are made here, while
            workers are busy with those before.
        workers: at most.
        advance: called with the units that the tasks advance by, in this process.
        units: where what the tasks give is kept, by their numbers; it is not made again.
        seconds: about what they all take together on one core; None where nobody knows, and they
            are begun here.
        given: called with what each task gives, in this process.
        count: how many tasks there are at most, where they are no sequence.

    Raises:
        AuditError: a task was lost with every worker that it was given to.
    """
    most = len(tasks) if isinstance(tasks, Sized) else count or 1
    source: Numbered[T] = enumerate(tasks)
    if units:
        source = ((n, partial(_kept, units.of("shared out", n), task)) for n, task in source)
    values: dict[int, T] = {}

    def take(number: int, value: T) -> None:
        values[number] = value
        given(number, value)

    if min(workers, most) > 1 and seconds is None:
        _here(source, advance, take, PATIENCE)
        seconds = math.inf
    workers = min(workers, most - len(values))
    if workers > 1 and seconds is not None and seconds >= COSTS:
        ship_by_value()
        shared = _Shared(source, most, workers, advance, take)
        try:
            shared.done()
        except PicklingError as error:
            log.info("no workers, the work cannot be shipped to them: %s", error)
            source = chain(sorted(shared.left.items()), source)
    _here(source, advance, take)
    return [values[number] for number in range(len(values))]


def _here(
    tasks: Numbered[T], advance: Advance, take: Callable[[int, T], None], patience: float = math.inf
) -> None:
    """Does the first tasks in this process with one thread, until they took so long."""
    begun = time.monotonic()
    while time.monotonic() - begun < patience:
        number, task = next(tasks, (None, None))
        if number is None or task is None:
            return
        with one_thread():
            value = task(advance)
        take(number, value)


@dataclass(frozen=True)
class Workers:
    """The workers of an audit's parts, and the store of finished work.

    Attributes:
        jobs: workers at most.
        units: where what the parts give is kept.
    """

    jobs: int = 1
    units: Units = NOTHING_KEPT

    def on(self, *words: Word) -> Workers:
        """Returns the workers with this name before the names of their saved work."""
        return replace(self, units=self.units.of(*words))

    def keeping(self, task: Task[T], *words: Word) -> Task[T]:
        """Returns the task with its result saved by this name."""
        return partial(_kept, self.units.of(*words), task) if self.units else task

    def share(
        self,
        tasks: Sequence[Task[T]],
        advance: Advance,
        seconds: float | None = None,
        given: Given = lambda number, value: None,
    ) -> list[T]:
        """Returns every task's result in order; see ``shared_out``."""
        return shared_out(tasks, self.jobs, advance, self.units, seconds, given)


ALONE = Workers()
"""Workers that are this process alone and save nothing."""


def _kept(units: Units, task: Task[T], advance: Advance) -> T:
    """Returns the task's saved or new result, and advances the progress by the same amount."""
    reported: list[int] = []

    def made() -> tuple[T, int]:
        def count(steps: int) -> None:
            reported.append(steps)
            advance(steps)

        return task(count), sum(reported)

    value, steps = units.once(made)
    advance(steps - sum(reported))
    return value


class _Shared:
    """Tasks that workers do, until each has a result or was given up.

    Few more are shipped, or made, than are worked on, since what they look at may be large.

    Attributes:
        left: tasks that gave nothing yet, of those that were made.
    """

    def __init__(
        self, source: Numbered[Any], count: int, workers: int, advance: Advance, take: Given
    ) -> None:
        self.source, self.count, self.workers = source, count, workers
        self.advance, self.take = advance, take
        self.left: dict[int, Task[Any]] = {}
        self.advanced: dict[int, int] = {}
        self.lost: dict[int, list[BaseException]] = {}
        self.reported = 0

    def done(self) -> None:
        """Send every task to the workers until each has a result."""
        cluster = _chosen_executor().cluster
        with TemporaryDirectory(prefix="gradaudit-") as folder:
            counts = Path(folder) / "units"
            self.units: NDArray[np.int64] = np.memmap(counts, np.int64, "w+", shape=(self.count,))
            try:
                self._round(cluster.open(self.workers), counts)
                while self.left:
                    self._expect_workers(cluster)
                    self._round(cluster.open(self.workers), counts)
            except PicklingError:  # workers had no part in that
                self.advance(sum(self.advanced.values()) - self.reported)
                raise
            except BaseException:
                self.advance(-self.reported)
                cluster.kill()
                raise

    def _round(self, executor: Executor, counts: Path) -> None:
        """Do every task that is left once; raises what one of them raised."""
        numbers = chain([*self.left], self._made())
        running: dict[Future[bytes], int] = {}
        try:
            while True:
                for number in islice(numbers, _AHEAD * self.workers - len(running)):
                    asked = self._asked(executor, counts, number)
                    if asked is None:
                        numbers = chain()  # the next round has other workers
                        break
                    running[asked] = number
                if not running:
                    return
                for future in wait(running, timeout=_POLL, return_when=FIRST_COMPLETED).done:
                    self._take(running.pop(future), future)
                self._report()
        finally:
            for future in running:
                future.cancel()

    def _made(self) -> Iterator[int]:
        """Yields the numbers of further tasks, each as it is sent."""
        for number, task in self.source:
            self.left[number] = task
            yield number

    def _asked(self, executor: Executor, counts: Path, number: int) -> Future[bytes] | None:
        """Sends a task to a worker; None where the loss of one worker ended all."""
        task = pickled(self.left[number])
        try:
            return executor.submit(perform, task, str(counts), number, versions())
        except Exception as error:  # whatever the place raises that takes no more work
            self._lose(number, error)
            return None

    def _report(self) -> None:
        """Advance the progress by new units, and take back those of lost tasks.

        A cluster may do a task again whose value is here already, so that its count is no more.
        """
        now = sum(self.advanced.get(number, int(count)) for number, count in enumerate(self.units))
        self.advance(now - self.reported)
        self.reported = now

    def _take(self, number: int, future: Future[bytes]) -> None:
        try:
            answer = future.result()
        except Exception as error:  # whatever becomes of workers; a task's own error is given
            self._lose(number, error)
            return
        value, self.advanced[number] = opened(answer)
        del self.left[number]
        self.take(number, value)

    def _lose(self, number: int, error: Exception) -> None:
        log.info("a worker was lost, its work is done again: %s", one_line(error))
        self.lost.setdefault(number, []).append(error)
        self.units[number] = 0

    def _expect_workers(self, cluster: Cluster) -> None:
        for errors in self.lost.values():
            if len(errors) >= TRIES:
                raise AuditError(
                    f"--executor {cluster}: the worker of a unit was lost {TRIES} times "
                    f"({one_line(errors[-1], 200)}); give workers more memory, or fewer --jobs"
                ) from errors[-1]
