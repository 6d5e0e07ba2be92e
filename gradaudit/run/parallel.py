"""Runs whole audits of a scan side by side, each in a worker of this machine."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from pickle import PicklingError
from tempfile import TemporaryDirectory

from gradaudit.executors.workers import on_this_machine, pickled, received, shared_out
from gradaudit.progress import Advance, Silent
from gradaudit.run.runner import Outcome, measured
from gradaudit.run.scan_plan import PlannedAudit, at_preset
from gradaudit.subject import Subject

log = logging.getLogger(__name__)


def workers_of(subject: Subject) -> int:
    """Returns the number of audits that can run at a time.

    One on a device, on other machines, whose files are others, where all of them would hold more
    records and weights than a chunk of work may take, and where the log is wanted of each.
    """
    workers = subject.workers
    fits = workers * _bytes(subject) <= subject.memory
    return workers if fits and on_this_machine() and not log.isEnabledFor(logging.DEBUG) else 1


def _bytes(subject: Subject) -> int:
    models = [target.model for target in subject.targets]
    weights = (tensor for model in models for tensor in (*model.parameters(), *model.buffers()))
    return subject.records.inputs.nbytes + sum(tensor.nbytes for tensor in weights)


def side_by_side(
    subject: Subject,
    audits: Sequence[PlannedAudit],
    workers: int,
    left: float | None,
    done: Callable[[PlannedAudit, Outcome], None],
) -> None:
    """Runs audits in workers; none if the subject cannot be shipped.

    The subject travels in a file, once to each worker. An audit is not begun after the deadline.

    Args:
        subject: what is audited.
        audits: in the order in which they are begun.
        workers: at most.
        left: seconds until the deadline; None without one.
        done: called with each audit when it is done.

    Raises:
        AuditError: a worker was lost.
        UsageError: an audit's options name something that does not exist.
        CheckpointError: or a file that is refused.
    """
    end = None if left is None else time.monotonic() + left  # processes of a machine share it
    with TemporaryDirectory(prefix="gradaudit-") as folder:
        file = Path(folder) / "subject"
        try:
            file.write_bytes(pickled(replace(subject, jobs=1)))
        except PicklingError as error:
            log.info("audits are done one after the other, they cannot be shipped: %s", error)
            return
        tasks = [partial(_outcome, str(file), each, end) for each in audits]

        def given(number: int, outcome: Outcome | None) -> None:
            if outcome is not None:
                part = replace(outcome.part, audit=audits[number].audit)
                done(audits[number], replace(outcome, part=part))

        shared_out(tasks, workers, lambda units: None, patience=0, given=given)


def _outcome(file: str, each: PlannedAudit, end: float | None, advance: Advance) -> Outcome | None:
    """Returns an audit's outcome in this worker; None after the deadline."""
    left = None if end is None else end - time.monotonic()
    if left is not None and left <= 0:
        return None
    subject = at_preset(_read(file), each.preset)
    return measured(subject, each.audit, Silent(), seconds=left)


@lru_cache(maxsize=1)
def _read(file: str) -> Subject:
    subject: Subject = received(Path(file).read_bytes())
    return subject
