"""Runs audits of a scan side by side, each in a worker of this machine."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from pickle import PicklingError
from tempfile import TemporaryDirectory

from gradaudit.planning.sampling import Subjects, sampled
from gradaudit.planning.schedule import ScheduledRun
from gradaudit.progress import Advance, Silent
from gradaudit.runner import Outcome, measured
from gradaudit.subject import Subject
from gradaudit.units import Units
from gradaudit.workers import on_this_machine, received, shared_out, shipped

log = logging.getLogger(__name__)


def workers_of(subject: Subject) -> int:
    """Returns the number of audits that can run at a time.

    One on a device, on other machines, whose files are others, where all of them would hold more
    records and weights than a chunk of work may take, and where somebody wants to read in the log
    what became of each.
    """
    workers = subject.workers.jobs
    fits = workers * _bytes(subject) <= subject.memory
    return workers if fits and on_this_machine() and not log.isEnabledFor(logging.DEBUG) else 1


def _bytes(subject: Subject) -> int:
    """Returns the bytes that the records and the models take."""
    models = [target.model for target in subject.targets]
    weights = (tensor for model in models for tensor in (*model.parameters(), *model.buffers()))
    return subject.records.inputs.nbytes + sum(tensor.nbytes for tensor in weights)


def side_by_side(
    subjects: Subjects,
    turns: Sequence[ScheduledRun],
    workers: int,
    units: Units,
    done: Callable[[ScheduledRun, Outcome], None],
) -> None:
    """Runs each audit in a worker; returns nothing where the subject cannot be sent to workers.

    The subject travels in a file, once to each worker. What a turn may take counts from now on, so
    that an audit that waits for a worker has less of it; it is not begun where nothing is left.

    Args:
        subjects: what is audited.
        turns: the audits, the longest first.
        workers: at most.
        units: where finished work is kept.
        done: told of each audit when it is done.

    Raises:
        AuditError: an audit was lost with every worker that it was given to.
        UsageError: an audit's options name something that does not exist.
        CheckpointError: or a file that is refused.
    """
    begun = time.monotonic()  # which the processes of a machine share
    alone = {single: replace(subject, jobs=1) for single, subject in subjects.items()}
    with TemporaryDirectory(prefix="gradaudit-") as folder:
        file = Path(folder) / "subject"
        try:
            file.write_bytes(shipped(alone))
        except PicklingError as error:
            log.info("audits are done one after the other, they cannot be shipped: %s", error)
            return

        def given(number: int, outcome: Outcome | None) -> None:
            if outcome is not None:
                done(turns[number], outcome)

        tasks = [partial(_outcome, str(file), turn, begun, units) for turn in turns]
        shared_out(tasks, workers, lambda units: None, given=given)


def _outcome(
    file: str, turn: ScheduledRun, begun: float, units: Units, advance: Advance
) -> Outcome | None:
    """Returns an audit's outcome in this worker; None where its time is already up."""
    left = None if turn.seconds is None else turn.seconds - (time.monotonic() - begun)
    if left is not None and left <= 0:
        return None
    subject = sampled(_read(file), turn.size)
    return measured(subject, turn.size.audit, Silent(), units, left)


@lru_cache(maxsize=1)
def _read(file: str) -> Subjects:
    subjects: Subjects = received(Path(file).read_bytes())
    return subjects
