"""All batches that are attacked, and each method's attempts on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.layerwise.perturbation import under_noise
from gradaudit.attacks.layerwise.prospects import prospects
from gradaudit.attacks.membership import recovered_labels
from gradaudit.attacks.reconstruction.attempts import Attempt, answer_of, attack, attempt
from gradaudit.attacks.reconstruction.batches import Task, over_batches
from gradaudit.attacks.reconstruction.blocks import blocks_of
from gradaudit.attacks.reconstruction.methods import Method
from gradaudit.attacks.reconstruction.observing import Observed, Observer
from gradaudit.attacks.reconstruction.pictures import draw_examples
from gradaudit.data.records import Records
from gradaudit.errors import UsageError
from gradaudit.models.target import Subject, Target
from gradaudit.progress import Progress
from gradaudit.sharing.captured import Captured, captured_update

T = TypeVar("T")

_KEY = 11
"""Sets this audit's draws apart from others of the same seed."""


@dataclass(frozen=True)
class Choice:
    """Which updates are attacked.

    Attributes:
        batch_size: records behind an update.
        batches: how many updates, of records drawn without replacement.
        records: these records instead, by number.
        update: a captured update instead, see ``captured_update``.
        rate: learning rate between the two checkpoints of a captured update.
    """

    batch_size: int = 1
    batches: int = 1
    records: tuple[int, ...] = ()
    update: str | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Campaign:
    """What is attacked.

    Attributes:
        observed: the attacked updates.
        scored: whether the truth is known.
        restarts: of every attack.
        seed: root of the attacks' randomness.
        facts: what every row says.
        jobs: worker processes that batches, or restarts, are shared out among.
    """

    observed: tuple[Observed, ...]
    scored: bool
    restarts: int
    seed: int
    facts: dict[str, JsonValue]
    jobs: int = 1

    @classmethod
    def prepare(
        cls, subject: Subject, choice: Choice, observer: Observer, restarts: int
    ) -> Campaign:
        """Draw batches and make their updates, or read a captured one.

        Raises:
            UsageError: there are no such records, or too few.
            CheckpointError: a captured update is refused.
        """
        batches = chosen_batches(subject, choice)
        facts: dict[str, JsonValue] = {"chosen_by": "the attacker's own score"}
        if choice.update is not None:
            captured = captured_update(choice.update, observer.target, choice.rate)
            observer = replace(observer, target=captured.target)
            observed = [_captured(observer, batches[0], captured)]
            facts["update"] = captured.details
        else:
            observed = [
                observer.of(batch, _generator(subject.seed, index, observer.target))
                for index, batch in enumerate(batches)
            ]
        facts["knowledge"] = dict(observed[0].view.knowledge)
        scored = choice.update is None or bool(choice.records)
        return cls(tuple(observed), scored, restarts, subject.seed, facts, subject.jobs)

    @property
    def batch(self) -> int:
        """Records behind an update."""
        return self.observed[0].view.batch

    def play(self, method: Method, progress: Progress) -> list[Attempt]:
        """One method's attempts on every batch.

        Raises:
            NotApplicable: the method says nothing about these updates.
        """
        return self._over_batches(partial(self._alone._attempt, method), method, progress)

    @property
    def _alone(self) -> Campaign:
        """Without the batches, which would travel to a worker with each one of them."""
        return replace(self, observed=())

    def _over_batches(self, task: Task[T], method: Method, progress: Progress) -> list[T]:
        blocks = blocks_of(self.restarts) if method.splits else 1
        return over_batches(task, self.observed, self.jobs, blocks, method.name, progress)

    def _attempt(
        self, method: Method, observed: Observed, index: int, progress: Progress, jobs: int
    ) -> Attempt:
        seed = self._seed(index)
        if self.scored:
            return attempt(method, observed, self.restarts, seed, progress, jobs)
        return Attempt(attack(method, observed.view, self.restarts, seed, progress, jobs), {}, None)

    def labels(
        self, method: Method, progress: Progress
    ) -> list[tuple[Tensor | None, float | None]]:
        """The labels that a method names of every batch, and its own score where it has one.

        Raises:
            NotApplicable: the method names no labels here.
        """
        return self._over_batches(partial(self._alone._labels, method), method, progress)

    def _labels(
        self, method: Method, observed: Observed, index: int, progress: Progress, jobs: int
    ) -> tuple[Tensor | None, float | None]:
        return recovered_labels(
            method, observed.view, self.restarts, self._seed(index), progress, jobs
        )

    def answers(self, method: Method, progress: Progress) -> list[Tensor]:
        """The attacker's answer (k, …) to every batch; NaN where all restarts diverged.

        Raises:
            NotApplicable: the method says nothing about these updates.
        """
        return self._over_batches(partial(self._alone._answer, method), method, progress)

    def _answer(
        self, method: Method, observed: Observed, index: int, progress: Progress, jobs: int
    ) -> Tensor:
        made = attack(method, observed.view, self.restarts, self._seed(index), progress, jobs)
        nothing = torch.full_like(made.inputs[0], torch.nan)
        return (nothing if made.answer is None else made.inputs[made.answer]).cpu()

    def prospects(self) -> dict[str, JsonValue]:
        """What layer-by-layer attacks could do with the first update."""
        first = self.observed[0]
        return prospects(first.view, first.records[:1], first.labels[:1], self.seed)

    def noise(self, attempts: Sequence[Attempt]) -> JsonValue:
        """Conditions (2) and (3) of Fan et al. 2020 of every update that the closed form solved.

        None where nothing was in front of the update, or the attack solves for no layer.
        """
        conditions: list[JsonValue] = []
        for observed, made in zip(self.observed, attempts, strict=True):
            layer, update = made.candidates.details.get("layer"), observed.view.update
            if observed.clean is None or not isinstance(layer, str):
                return None
            conditions.append({"layer": layer, **under_noise(observed.clean, update, layer)})
        return conditions

    def _seed(self, index: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(_KEY, index, 1))

    def draw(self, folder: Path, text: str, attempts: Sequence[Attempt]) -> None:
        """Pictures of the answers of one method, originals beside them."""
        for index, (observed, made) in enumerate(zip(self.observed, attempts, strict=True)):
            answer = answer_of(made, observed)
            if answer is not None:
                name = f"{text.partition(':')[0]}-{index + 1:02d}"
                draw_examples(folder, name, observed.records if self.scored else None, answer)


def chosen_batches(subject: Subject, options: Choice) -> list[Records]:
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
        rows = _drawn(subject, options.batches, size)
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
    if not captured.length_known:
        knowledge = {**view.knowledge, "length": "unknown, as the learning rate is"}
        view = replace(view, length_known=False, knowledge=knowledge)
    return Observed(view, batch.inputs, batch.labels)


def _generator(seed: int, index: int, target: Target) -> torch.Generator:
    sequence = np.random.SeedSequence(seed, spawn_key=(_KEY, index, 0))
    state = int(sequence.generate_state(1, np.uint64)[0]) >> 1
    return torch.Generator(target.device).manual_seed(state)
