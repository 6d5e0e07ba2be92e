"""Attacked batches, by worker processes or in turn; the numbers do not depend on how many."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from gradaudit.attacks.reconstruction.observing import Observed
from gradaudit.progress import Advance, Progress, Silent
from gradaudit.workers import shared_out

T = TypeVar("T")
Task = Callable[[Observed, int, Progress, int], T]
"""What is done to a batch, given its number and how many workers may share in it."""


def over_batches(
    task: Task[T],
    observed: Sequence[Observed],
    jobs: int,
    blocks: int,
    title: str,
    progress: Progress,
) -> list[T]:
    """A task's results for every batch, in order.

    The batches are shared out among workers where that keeps as many of them busy as sharing out
    the blocks of restarts of one batch after the other would, and never on a GPU.

    Args:
        task: seeded by the batch's number alone.
        observed: the batches.
        jobs: worker processes.
        blocks: that the restarts of a batch are made of; 1 where they cannot be shared out.
        title: of the work, for the progress of several workers.
        progress: who is told how far the work is.
    """
    jobs = jobs if observed[0].view.model.device.type == "cpu" else 1
    if min(jobs, len(observed)) > 1 and min(jobs, len(observed)) >= min(jobs, blocks):
        tasks = [partial(_one, task, batch, number) for number, batch in enumerate(observed)]
        with progress.task(title, len(observed)) as advance:
            return shared_out(tasks, jobs, advance)
    return [task(batch, number, progress, jobs) for number, batch in enumerate(observed)]


def _one(task: Task[T], batch: Observed, number: int, advance: Advance) -> T:
    result = task(batch, number, Silent(), 1)
    advance(1)
    return result
