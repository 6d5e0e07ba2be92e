"""Batches that are attacked, what a method makes of each, and pictures of both side by side."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction import Method
from gradaudit.attacks.reconstruction.base import Execution
from gradaudit.attacks.reconstruction.observing import AttackedBatch, AttackedBatches, ThreatModel
from gradaudit.core.files import write_atomically
from gradaudit.core.randomness import rng, sequence, torch_rng
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.executors.workers import shared_out
from gradaudit.progress import Advance, Progress
from gradaudit.report import Variant
from gradaudit.sharing.captured import CapturedUpdate, captured_update
from gradaudit.subject import Subject

T = TypeVar("T")
Attack = Callable[[Method, AttackedBatch, Execution], T]
"""What is made of a batch by a method. See ``attempts``."""
Task = Callable[[AttackedBatch, int, Execution], T]
"""What is done to a batch, given its number and an execution with the seed of all batches."""
_SIDE = 128
"""Small pictures are enlarged to about this many pixels a side, without smoothing."""
_GAP, _LINE = 4, 14
_INK = (0, 0, 0)


@dataclass(frozen=True)
class Choice:
    """The choice of the updates that are attacked.

    Attributes:
        batch_size: records of one client.
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
    """The updates that are attacked, and the attacker's knowledge.

    Attributes:
        scored: whether the truth is known.
        execution: with the seed of all batches.
        drawn: the records of each batch, the truth.
        threat: how other records would become an update that is seen.
        workers: processes that batches may be shared out among; no number depends on them.
    """

    observed: Sequence[AttackedBatch]
    scored: bool
    facts: dict[str, JsonValue]
    execution: Execution = field(default_factory=Execution)
    drawn: tuple[Records, ...] = ()
    threat: ThreatModel | None = None
    workers: int = 1

    @classmethod
    def prepare(
        cls, subject: Subject, choice: Choice, threat: ThreatModel, progress: Progress
    ) -> Campaign:
        """Draw batches and make their updates, or read a captured one.

        Raises:
            UsageError: there are no such records, or too few.
            CheckpointError: a captured update is refused.
        """
        choice = replace(choice, batch_size=choice.batch_size * threat.sharing.clients)
        batches, room = chosen_batches(subject, choice), subject.memory
        facts: dict[str, JsonValue] = {"chosen_by": "the attacker's own score"}
        if choice.update is not None:
            captured = captured_update(choice.update, threat.target, choice.rate)
            threat = replace(threat, target=captured.target)
            observed: Sequence[AttackedBatch] = [_captured(threat, batches[0], captured)]
            facts["update"] = captured.details
        else:
            observed = AttackedBatches(
                partial(_shared, subject.seed, threat, batches), len(batches), room
            )
        facts["knowledge"] = dict(observed[0].view.knowledge)
        scored = choice.update is None or bool(choice.records)
        execution = Execution(subject.seed, progress)
        drawn = tuple(batches)
        return cls(observed, scored, facts, execution, drawn, threat, subject.jobs)

    def first(self, count: int) -> Self:
        """Return the campaign of the first updates alone."""
        if count >= len(self.observed):
            return self
        observed = [self.observed[number] for number in range(count)]
        return replace(self, observed=observed, drawn=self.drawn[:count])

    @property
    def batch(self) -> int:
        """Records behind an update."""
        return self.observed[0].view.batch

    def outcomes(self, task: Task[T], title: str) -> list[T]:
        """A task's results for every batch, in order.

        The batches are shared out among workers, but never on a GPU. The numbers do not depend on
        how many workers there are.

        Args:
            task: seeded by the batch's number alone.
            title: of the work, for the progress of several workers.

        Raises:
            NotApplicable: the attack says nothing about any of these updates.
        """
        observed = self.observed
        if min(self.workers, len(observed)) > 1 and observed[0].view.model.device.type == "cpu":
            alone = Execution(self.execution.seed)
            tasks = [partial(_one, task, batch, n, alone) for n, batch in enumerate(observed)]
            with self.execution.progress.task(title, len(observed)) as advance:
                results = shared_out(tasks, self.workers, advance, patience=0)
        else:
            results = []
            for number, batch in enumerate(observed):
                results.append(task(batch, number, self.execution))
        reasons = [result for result in results if isinstance(result, NotApplicable)]
        if reasons and len(reasons) == len(results):
            raise reasons[0]
        return results


def _one(
    task: Task[T], batch: AttackedBatch, number: int, execution: Execution, advance: Advance
) -> T:
    result = task(batch, number, execution)
    advance(1)
    return result


def attacking(attack: Attack[T], method: Method) -> tuple[Task[T | NotApplicable], str]:
    """Make the arguments of ``Campaign.outcomes`` for an attack by a method."""
    return partial(attack_batch, attack, method), method.name


def attack_batch(
    attack: Attack[T], method: Method, batch: AttackedBatch, number: int, execution: Execution
) -> T | NotApplicable:
    """Attack one batch of a campaign by its own seed.

    The task holds no other batch, which would travel to its worker.

    Returns:
        What the attack makes of the batch, or the reason why it says nothing about it: records
        that the model is certain of have an update of zeros.
    """
    draws = sequence(execution.seed, "reconstruction", "attack", number)
    try:
        return attack(method, batch, replace(execution, seed=draws))
    except NotApplicable as error:
        return error


def chosen_batches(subject: Subject, options: Choice) -> list[Records]:
    """The batches to attack: the named records, or ones drawn without replacement.

    Raises:
        NotApplicable: there are too few records.
        UsageError: there is no such record.
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
        raise NotApplicable(
            f"--batch-size {size}: the data has only {len(subject.records)} records, and all "
            "behind an update must be among them (--batch-size, times one more than --others)"
        )
    batches = min(batches, len(subject.records) // size)
    order = rng(subject.seed, "reconstruction", "batches").permutation(len(subject.records))
    counted = subject.target.loss.weights(subject.records.labels)
    if counted is not None:  # a batch that counts nothing has no gradient: it is 0 / 0
        order = order[counted.cpu().numpy()[order] > 0]
        batches = min(batches, len(order) // size)
        if not batches:
            raise NotApplicable("the loss counts no label of these records")
    return order[: batches * size].reshape(batches, size).astype(np.int64)


def _shared(
    seed: int, threat: ThreatModel, batches: Sequence[Records], number: int
) -> AttackedBatch:
    draws = torch_rng(seed, "reconstruction", "update", number, device=threat.target.device)
    return threat.observed(batches[number], draws)


def _captured(threat: ThreatModel, batch: Records, captured: CapturedUpdate) -> AttackedBatch:
    view = threat.view(batch, threat.visible(captured.update))
    if not captured.length_known:
        knowledge = {**view.knowledge, "length": "unknown, as the learning rate is"}
        view = replace(view, length_known=False, knowledge=knowledge)
    return AttackedBatch(view, batch.inputs, batch.labels)


def expect_folder(folder: Path) -> None:
    """Make the folder for examples, before the work.

    Raises:
        UsageError: it cannot be made or is a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--save-examples {folder}: cannot be made: {error.strerror or error}"
        ) from error


def example_name(name: str, variant: Variant) -> str:
    """Name the files of examples, before the number of the update: ``dlg``, ``round-3-dlg``."""
    return f"round-{variant['round']}-{name}" if "round" in variant else name


def draw_examples(folder: Path, name: str, truth: Tensor | None, reconstructions: Tensor) -> Path:
    """Write ``NAME.png``: a row a record, the original at the left where it is known.

    Args:
        folder: exists.
        name: of the method and the batch; it is written above the pictures.
        truth: (k, channels, height, width) in [0, 1], or None.
        reconstructions: the same shape; values outside are clipped.

    Raises:
        NotApplicable: the records are no pictures.
    """
    if reconstructions.dim() != 4 or reconstructions.shape[1] not in (1, 3):
        raise NotApplicable("--save-examples draws pictures, and these records are none")
    columns = [("reconstruction", reconstructions)]
    if truth is not None:
        columns.insert(0, ("original", truth))
    scale = max(1, round(_SIDE / max(reconstructions.shape[-2:])))
    height, width = (size * scale for size in reconstructions.shape[-2:])
    cell = max(width, 100) + _GAP
    size = (_GAP + cell * len(columns), 2 * _LINE + (height + _GAP) * len(reconstructions) + _GAP)
    sheet = Image.new("RGB", size, (255, 255, 255))
    ink, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    ink.text((_GAP, 1), name, fill=_INK, font=font)
    for column, (title, pictures) in enumerate(columns):
        left = _GAP + column * cell
        ink.text((left, _LINE), title, fill=_INK, font=font)
        for row, picture in enumerate(pictures):
            pixels = (picture.detach().cpu().double().clamp(0, 1) * 255).round()
            shown = pixels.numpy().astype(np.uint8).transpose(1, 2, 0)
            image = Image.fromarray(shown[..., 0] if shown.shape[2] == 1 else shown).convert("RGB")
            enlarged = image.resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (left, 2 * _LINE + row * (height + _GAP)))
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    path = folder / f"{name}.png"
    write_atomically(path, content.getvalue())
    return path
