"""Attacked batches spread over worker processes; the numbers do not depend on how many."""

import logging
import sys
from collections.abc import Callable, Sequence
from pickle import PicklingError
from types import ModuleType
from typing import TypeVar

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import BrokenProcessPool

from gradaudit.attacks.reconstruction.observing import Observed
from gradaudit.progress import Progress, Silent

try:
    from joblib.externals import cloudpickle
except ImportError:  # newer joblib takes the distribution of that name
    import cloudpickle  # type: ignore[import-untyped]

log = logging.getLogger(__name__)

T = TypeVar("T")
Task = Callable[[Observed, int, Progress], T]
"""What is done to a batch, given its number."""


def over_batches(
    task: Task[T], observed: Sequence[Observed], jobs: int, title: str, progress: Progress
) -> list[T]:
    """A task's results for every batch, in order.

    The batches stay in this process where there is one worker or one batch, on a GPU, which maps
    over restarts already, and where a user's model cannot be shipped to another process.

    Args:
        task: seeded by the batch's number alone.
        observed: the batches.
        jobs: worker processes.
        title: of the work, for the progress of several workers.
        progress: who is told how far the work is.
    """
    if min(jobs, len(observed)) > 1 and observed[0].view.model.device.type == "cpu":
        try:
            return _in_workers(task, observed, jobs, title, progress)
        except (PicklingError, BrokenProcessPool) as error:
            log.info("no worker processes, the model cannot be shipped to them: %s", error)
    return [task(each, number, progress) for number, each in enumerate(observed)]


def _in_workers(
    task: Task[T], observed: Sequence[Observed], jobs: int, title: str, progress: Progress
) -> list[T]:
    _ship_by_value()
    found: list[T] = []
    with (
        progress.task(title, len(observed)) as advance,
        Parallel(min(jobs, len(observed)), return_as="generator") as workers,
    ):
        calls = (delayed(task)(each, number, Silent()) for number, each in enumerate(observed))
        for result in workers(calls):
            found.append(result)
            advance(1)
    return found


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
