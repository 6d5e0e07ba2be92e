"""Tasks shared out among worker processes; what they find does not depend on how many there are."""

import logging
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from pathlib import Path
from pickle import PicklingError
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TypeVar

import numpy as np
import torch
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import BrokenProcessPool
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
    pool = get_reusable_executor(workers, timeout=_IDLE, initializer=_begin, env=_ONE_THREAD)
    with TemporaryDirectory(prefix="gradaudit-") as folder:
        counts = Path(folder) / "units"
        units = np.memmap(counts, np.int64, "w+", shape=(len(tasks),))
        try:
            running = [
                pool.submit(_counted, task, counts, number) for number, task in enumerate(tasks)
            ]
            _watch(running, units, advance)
            return [future.result() for future in running]
        except BaseException:
            pool.shutdown(wait=True, kill_workers=True)
            raise


def _watch(running: Sequence["Future[T]"], units: NDArray[np.int64], advance: Advance) -> None:
    """Advance until all tasks are done, or raise what one of them raised."""
    told, waiting = 0, set(running)
    while waiting:
        done, waiting = wait(waiting, timeout=_POLL, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        now = int(units.sum())
        advance(now - told)
        told = now


def _counted(task: Task[T], counts: Path, number: int) -> T:
    """A task in a worker: its units are counted where the process that watches sees them."""
    units = np.memmap(counts, np.int64, "r+")

    def advance(more: int) -> None:
        units[number] += more

    return task(advance)


def _begin() -> None:
    """Compute in one thread, and leave an interruption to the process that watches."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
