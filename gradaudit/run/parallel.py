"""Runs audits of a scan side by side, each in a worker of this machine.

Each looks at the subject in the precision, records and layers of its size, and advances the scan's
progress by the seconds that it should take.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from pickle import PicklingError
from tempfile import TemporaryDirectory

from gradaudit.audits.sizes import Size
from gradaudit.executors.shipping import received, shipped
from gradaudit.executors.units import Units
from gradaudit.executors.workers import on_this_machine, shared_out
from gradaudit.models.target import Layer
from gradaudit.progress import Advance, Progress, Silent
from gradaudit.run.runner import Outcome, measured
from gradaudit.run.schedule import ScheduledRun
from gradaudit.subject import Subject

Subjects = Mapping[bool, Subject]
"""The subject in single precision (True), and in its own."""


def sampled(subjects: Subjects, size: Size) -> Subject:
    """Returns the subject that an audit of this size gets."""
    subject = subjects[size.single]
    layers = sample_of(subject.layers, size.layers or len(subject.layers))
    return replace(subject, samples=subject.samples or size.samples, layers=layers)


def looks_at_all(size: Size, layers: Sequence[Layer]) -> bool:
    """Whether an audit of this size measures all layers."""
    return size.layers is None or size.layers >= len(layers)


_GIANT = 0.25
"""Share of all parameters from which on a layer is not in a sample of the layers."""


def sample_of(layers: Sequence[Layer], count: int) -> tuple[Layer, ...]:
    """Returns a number of layers, in the model's order.

    The first, the last and the widest, then the middle one of each kind in a block, which are those
    whose names differ in numbers alone, the most frequent first, and then some at equal distances.
    Layers with more than a quarter of all parameters are left to larger sizes where there are
    enough others: the table of GPT-2's tokens takes as long as all else in its sample.
    """
    if count >= len(layers):
        return tuple(layers)
    every, total = layers, sum(layer.parameters for layer in layers)
    layers = [layer for layer in every if layer.parameters <= _GIANT * total]
    layers = layers if len(layers) >= count else every
    places = range(len(layers))
    widest = max(places, key=lambda place: layers[place].parameters)
    blocks: dict[tuple[str, str], list[int]] = {}
    for place, layer in enumerate(layers):
        blocks.setdefault((layer.kind, re.sub(r"\d+", "#", layer.name)), []).append(place)
    frequent = sorted(blocks.values(), key=len, reverse=True)
    chosen = dict.fromkeys((0, len(layers) - 1, widest))
    chosen |= dict.fromkeys(b[len(b) // 2] for b in frequent if not chosen.keys() & {*b})
    spread = (round(n * (len(layers) - 1) / (count - 1)) for n in range(count))
    wanted = dict.fromkeys(chain(chosen, spread, places))
    return tuple(layers[place] for place in sorted([*wanted][:count]))


class AuditProgress:
    """Progress of an audit that advances the scan's progress by its expected seconds.

    How many tasks an audit has nobody knows beforehand, so each takes half of what is left.

    Args:
        outer: gets tasks and lines.
        advance: advances the outer task by whole seconds.
        seconds: expected of the audit.
    """

    def __init__(self, outer: Progress, advance: Advance, seconds: float) -> None:
        self._outer, self._advance = outer, advance
        self._seconds = self._left = seconds
        self._done, self._reported = 0.0, 0

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        """Start a task of the audit."""
        share = self._left / 2
        self._left -= share
        with self._outer.task(description, total) as inner:

            def advance(units: int) -> None:
                inner(units)
                self._move(share * units / max(1, total))

            yield advance

    def say(self, line: str) -> None:
        """Show a result during the audit."""
        self._outer.say(line)

    def finish(self) -> None:
        """Advance by the expected seconds that no task took."""
        self._report(round(self._seconds))

    def _move(self, seconds: float) -> None:
        self._done += seconds
        self._report(int(self._done))

    def _report(self, whole: int) -> None:
        if whole > self._reported:
            self._advance(whole - self._reported)
            self._reported = whole


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
        done: called with each audit when it is done.

    Raises:
        AuditError: every worker that an audit was given to has crashed.
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
