"""All batches that are attacked, and each method's attempts on them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction.attempts import Attempt, answer_of, attack, attempt
from gradaudit.attacks.reconstruction.methods import Method
from gradaudit.attacks.reconstruction.observing import Observed, Observer
from gradaudit.errors import UsageError
from gradaudit.loading.records import Records
from gradaudit.progress import Progress
from gradaudit.target import Subject, Target
from gradaudit.updates.captured import Captured, captured_update
from gradaudit.updates.sharing import Sharing

if TYPE_CHECKING:
    from gradaudit.audits._reconstruct_options import ReconstructOptions

_KEY = 11
"""Sets this audit's draws apart from others of the same seed."""


@dataclass(frozen=True)
class Campaign:
    """What is attacked.

    Attributes:
        options: of the audit.
        observed: the attacked batches.
        scored: whether the truth is known.
        seed: root of the attacks' randomness.
        facts: what every row says.
        target: the clients' model.
    """

    options: "ReconstructOptions"
    observed: tuple[Observed, ...]
    scored: bool
    seed: int
    facts: dict[str, JsonValue]
    target: Target

    @classmethod
    def prepare(cls, subject: Subject, target: Target, options: "ReconstructOptions") -> "Campaign":
        """Draw batches and make their updates, or read a captured one.

        Raises:
            UsageError: an option is wrong for these records.
            CheckpointError: a captured update is refused.
        """
        if options.save_examples is not None:
            from gradaudit.attacks.reconstruction.pictures import expect_folder

            expect_folder(options.save_examples)
        sharing = Sharing(
            defenses=subject.defenses,
            algorithm=options.algorithm,
            epochs=options.epochs,
            rate=options.rate or 0.1,
            local_batch=options.local_batch,
            hidden=subject.hidden,
        )
        start = None if options.start is None else _start(options.start)
        observer = Observer(target, sharing, subject.layers, options.known_labels, start)
        batches = chosen_batches(subject, options)
        facts: dict[str, JsonValue] = {"chosen_by": "the attacker's own score"}
        if options.update is not None:
            captured = captured_update(options.update, target, options.rate)
            observer = replace(observer, target=captured.target)
            observed = [_captured(observer, batches[0], captured)]
            facts["update"] = captured.details
        else:
            observed = [
                observer.of(batch, _generator(subject.seed, index, 0, target))
                for index, batch in enumerate(batches)
            ]
        facts["knowledge"] = dict(observed[0].view.knowledge)
        scored = options.update is None or bool(options.records)
        return cls(options, tuple(observed), scored, subject.seed, facts, target)

    @property
    def batch(self) -> int:
        """Records behind an update."""
        return self.observed[0].view.batch

    def play(self, text: str, method: Method, progress: Progress) -> list[Attempt]:
        """One method's attempts on every batch.

        Raises:
            NotApplicable: the method says nothing about these updates.
        """
        attempts = [
            self._attempt(method, observed, index, progress)
            for index, observed in enumerate(self.observed)
        ]
        if self.options.save_examples is not None:
            self._draw(self.options.save_examples, text, attempts)
        return attempts

    def _attempt(
        self, method: Method, observed: Observed, index: int, progress: Progress
    ) -> Attempt:
        seed = np.random.SeedSequence(self.seed, spawn_key=(_KEY, index, 1))
        restarts = self.options.restarts
        if self.scored:
            return attempt(method, observed, restarts, seed, progress)
        return Attempt(attack(method, observed.view, restarts, seed, progress), {}, None)

    def _draw(self, folder: Path, text: str, attempts: list[Attempt]) -> None:
        from gradaudit.attacks.reconstruction.pictures import draw_examples

        for index, (observed, made) in enumerate(zip(self.observed, attempts, strict=True)):
            found = answer_of(made, observed)
            if found is not None:
                name = f"{text.partition(':')[0]}-{index + 1:02d}"
                draw_examples(folder, name, observed.records if self.scored else None, found)


def chosen_batches(subject: Subject, options: "ReconstructOptions") -> list[Records]:
    """The batches to attack: the named records, or ones drawn without replacement.

    Raises:
        UsageError: there are too few records, or no such record.
    """
    size, count = options.batch_size, len(subject.records)
    if options.records:
        if max(options.records) >= count:
            raise UsageError(
                f"--records {max(options.records)}: the data has {count} records, from 0"
            )
        if len(options.records) % size:
            raise UsageError(
                f"--records: {len(options.records)} records make no whole batches of "
                f"--batch-size {size}"
            )
        rows = np.asarray(options.records, dtype=np.int64).reshape(-1, size)
    else:
        wanted = subject.samples // size if subject.samples else options.batches
        rows = _drawn(subject, max(wanted, 1), size)
    if options.update is not None and len(rows) > 1 and options.records:
        raise UsageError("--update: holds one update; name as many --records as --batch-size")
    return [subject.records.take(row) for row in rows]


def _drawn(subject: Subject, batches: int, size: int) -> NDArray[np.int64]:
    if size > len(subject.records):
        raise UsageError(f"--batch-size {size}: the data has only {len(subject.records)} records")
    batches = min(batches, len(subject.records) // size)
    sequence = np.random.SeedSequence(subject.seed, spawn_key=(_KEY,))
    order = np.random.default_rng(sequence).permutation(len(subject.records))
    return order[: batches * size].reshape(batches, size).astype(np.int64)


def _captured(observer: Observer, batch: Records, captured: Captured) -> Observed:
    view = observer.view(batch, observer.visible(captured.update))
    return Observed(view, batch.inputs, batch.labels)


def _generator(seed: int, index: int, part: int, target: Target) -> torch.Generator:
    sequence = np.random.SeedSequence(seed, spawn_key=(_KEY, index, part))
    state = int(sequence.generate_state(1, np.uint64)[0]) >> 1
    return torch.Generator(target.device).manual_seed(state)


def _start(path: Path) -> Tensor:
    try:
        array = np.load(path, allow_pickle=False)
        return torch.from_numpy(np.asarray(array, dtype=np.float64))
    except (OSError, ValueError) as error:
        raise UsageError(f"--start {path}: is no readable .npy array of numbers") from error
