"""Tasks shared out among worker processes; what they find does not depend on how many there are.

There is one pool for all parallel work. Workers ignore interruptions, which their parent turns into
their end, and end by themselves when it was killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pickle import PicklingError
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from gradaudit.progress import Advance
from gradaudit.units import NOTHING_KEPT, Units

log = logging.getLogger(__name__)

T = TypeVar("T")
Task = Callable[[Advance], T]
"""Work that tells how many units of it are done."""

_POLL = 0.2
"""Seconds between two looks at how far the workers are."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def shared_out(
    tasks: Sequence[Task[T]], workers: int, advance: Advance, units: Units = NOTHING_KEPT
) -> list[T]:
    """What every task gives, in order, from as many worker processes of one thread each.

    The tasks stay in this process where one worker is enough, and where what they need, such as a
    user's model, cannot be shipped to another one. An exception of a task, and an interruption,
    end the workers at once.

    Args:
        tasks: independent of one another.
        workers: processes at most.
        advance: told of the units that the tasks advance by, in this process.
        units: where what the tasks give is kept, by their numbers; it is not made again.
    """
    if units:
        tasks = [
            partial(_kept, units.of("shared out", number), task)
            for number, task in enumerate(tasks)
        ]
    workers = min(workers, len(tasks))
    if workers > 1:
        try:
            return _in_workers(_shipped(tasks), workers, advance)
        except (PicklingError, BrokenProcessPool) as error:
            log.info("no worker processes, the work cannot be shipped to them: %s", error)
    return [task(advance) for task in tasks]


def _kept(units: Units, task: Task[T], advance: Advance) -> T:
    """What the task gives, or gave; either way it advances by as much."""
    told: list[int] = []

    def made() -> tuple[T, int]:
        def count(steps: int) -> None:
            told.append(steps)
            advance(steps)

        return task(count), sum(told)

    value, steps = units.once(made)
    advance(steps - sum(told))
    return value


def _shipped(tasks: Sequence[Task[Any]]) -> list[bytes]:
    """The tasks as workers take them; a PicklingError where one cannot leave this process."""
    _ship_by_value()
    try:
        return [cloudpickle.dumps(task) for task in tasks]
    except TypeError as error:
        raise PicklingError(str(error)) from error


def _in_workers(tasks: Sequence[bytes], workers: int, advance: Advance) -> list[Any]:
    pool = _Pool.of(workers)
    with TemporaryDirectory(prefix="gradaudit-") as folder:
        counts = Path(folder) / "units"
        units = np.memmap(counts, np.int64, "w+", shape=(len(tasks),))
        try:
            running = pool.submit(
                [partial(_counted, task, counts, number) for number, task in enumerate(tasks)]
            )
            _watch(running, units, advance)
            return [cloudpickle.loads(future.result()) for future in running]
        except BaseException:
            pool.kill()
            raise


class _Pool:
    """Worker processes, kept from one call to the next for as long as as many are asked for."""

    kept: _Pool | None = None

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.processes: list[Any] = []
        self.executor = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin
        )

    @classmethod
    def of(cls, workers: int) -> _Pool:
        """So many workers: those of the last call, or new ones in their place."""
        if cls.kept is None or cls.kept.workers != workers:
            if cls.kept is not None:
                cls.kept.executor.shutdown()
            cls.kept = cls(workers)
        return cls.kept

    def submit(self, calls: Sequence[Callable[[], bytes]]) -> list[Future[bytes]]:
        """Start the calls, and the processes that are still missing."""
        others = set(multiprocessing.active_children()) - set(self.processes)
        with _birth():
            running = [self.executor.submit(call) for call in calls]
        self.processes = list(set(multiprocessing.active_children()) - others)
        return running

    def kill(self) -> None:
        """End the processes at once, whatever they do."""
        type(self).kept = None
        for process in self.processes:
            process.kill()
        self.executor.shutdown(cancel_futures=True)


@contextmanager
def _birth() -> Iterator[None]:
    """Processes that are started within, in some milliseconds, have one thread and no ear.

    Only the main thread may say who listens to interruptions.
    """
    before = {name: os.environ[name] for name in _ONE_THREAD if name in os.environ}
    main = threading.current_thread() is threading.main_thread()
    listening = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        for name in _ONE_THREAD:
            del os.environ[name]
        os.environ.update(before)
        if listening is not None:
            signal.signal(signal.SIGINT, listening)


def _watch(running: Sequence[Future[Any]], units: NDArray[np.int64], advance: Advance) -> None:
    """Advance until all tasks are done, or raise what one of them raised.

    Where workers broke down, what they did will be done again: it is taken back.
    """
    told, waiting = 0, set(running)
    while waiting:
        done, waiting = wait(waiting, timeout=_POLL, return_when=FIRST_EXCEPTION)
        try:
            for future in done:
                future.result()
        except (PicklingError, BrokenProcessPool):
            advance(-told)
            raise
        now = int(units.sum())
        advance(now - told)
        told = now


def _counted(task: bytes, counts: Path, number: int) -> bytes:
    """A task in a worker: its units are counted where the process that watches sees them."""
    units = np.memmap(counts, np.int64, "r+")

    def advance(more: int) -> None:
        units[number] += more

    return cloudpickle.dumps(cloudpickle.loads(task)(advance))  # type: ignore[no-any-return]


def _begin() -> None:
    """Leave interruptions and warnings to the process that watches, and end where it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker

    def follow() -> None:
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    threading.Thread(target=follow, daemon=True).start()


def _ship_by_value() -> None:
    """Let modules that another process could not import, such as a user's file, travel whole."""
    finders = [getattr(finder, "find_spec", None) for finder in sys.meta_path]
    names = {module.partition(".")[0] for module in tuple(sys.modules)}
    for name in names - {"__main__", "__mp_main__"}:
        module = sys.modules.get(name)
        ours = isinstance(module, ModuleType) and getattr(module, "__file__", None)
        if ours and not any(find and find(name, None) for find in finders):
            cloudpickle.register_pickle_by_value(module)
