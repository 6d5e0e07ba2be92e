"""Tasks shared out among worker processes; what they find does not depend on how many there are."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from pathlib import Path
from pickle import PicklingError
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TypeVar

import numpy as np
import torch
from joblib.externals.loky.process_executor import BrokenProcessPool, ProcessPoolExecutor
from numpy.typing import NDArray

from gradaudit.progress import Advance

try:
    from joblib.externals import cloudpickle
except ImportError:  # newer joblib takes the distribution of that name
    import cloudpickle  # type: ignore[import-untyped]

log = logging.getLogger(__name__)

T = TypeVar("T")
Task = Callable[[Advance], T]
"""Work that tells how many units of it are done."""

_POLL = 0.2
"""Seconds between two looks at how far the workers are."""
_IDLE = 30
"""Seconds after which a worker without work ends."""
_FOLLOWED = 1.0
"""Seconds between two looks of a worker at whether anybody waits for it."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def shared_out(tasks: Sequence[Task[T]], workers: int, advance: Advance) -> list[T]:
    """What every task gives, in order, from as many worker processes of one thread each.

    The tasks stay in this process where one worker is enough, and where what they need, such as a
    user's model, cannot be shipped to another one. An exception of a task, and an interruption,
    end the workers at once.

    Args:
        tasks: independent of one another.
        workers: processes at most.
        advance: told of the units that the tasks advance by, in this process.
    """
    workers = min(workers, len(tasks))
    if workers > 1:
        try:
            return _in_workers(tasks, workers, advance)
        except (PicklingError, BrokenProcessPool) as error:
            log.info("no worker processes, the work cannot be shipped to them: %s", error)
    return [task(advance) for task in tasks]


def _in_workers(tasks: Sequence[Task[T]], workers: int, advance: Advance) -> list[T]:
    _ship_by_value()
    pool = _pool(workers)
    with TemporaryDirectory(prefix="gradaudit-") as folder:
        counts = Path(folder) / "units"
        units = np.memmap(counts, np.int64, "w+", shape=(len(tasks),))
        try:
            with _interruptions_ignored():
                running = [
                    pool.submit(_counted, task, counts, number) for number, task in enumerate(tasks)
                ]
            _watch(running, units, advance)
            return [future.result() for future in running]
        except BaseException:
            _kept.clear()
            pool.shutdown(wait=True, kill_workers=True)
            raise


_kept: dict[int, ProcessPoolExecutor] = {}
"""The pool of the last call, by its size; not the one that joblib keeps, which is of other use."""


def _pool(workers: int) -> ProcessPoolExecutor:
    """So many workers: those of the last call, or new ones in their place."""
    if workers not in _kept:
        for pool in _kept.values():
            pool.shutdown()
        _kept.clear()
        _kept[workers] = ProcessPoolExecutor(
            workers, timeout=_IDLE, initializer=_begin, initargs=(os.getpid(),), env=_ONE_THREAD
        )
    return _kept[workers]


@contextmanager
def _interruptions_ignored() -> Iterator[None]:
    """Processes that are started within, in some milliseconds, ignore interruptions from birth."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(running: Sequence["Future[T]"], units: NDArray[np.int64], advance: Advance) -> None:
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


def _counted(task: Task[T], counts: Path, number: int) -> T:
    """A task in a worker: its units are counted where the process that watches sees them."""
    units = np.memmap(counts, np.int64, "r+")

    def advance(more: int) -> None:
        units[number] += more

    return task(advance)


def _begin(parent: int) -> None:
    """Compute in one thread, leave an interruption to the process that watches, end with it."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    """End this process at once where its parent was killed, which cannot end it any more."""
    while os.getppid() == parent:
        time.sleep(_FOLLOWED)
    os._exit(1)


def _ship_by_value() -> None:
    """Let modules that another process could not import, such as a user's file, travel whole."""
    for name in {module.partition(".")[0] for module in tuple(sys.modules)}:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and _only_here(name, module):
            cloudpickle.register_pickle_by_value(module)


def _only_here(name: str, module: ModuleType) -> bool:
    if name == "__main__" or not getattr(module, "__file__", None):
        return False
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    return not any(find and find(name, None) for find in finders)
