"""A training saved in a folder: a checkpoint for each round, a summary, and where to resume.

``round-000.safetensors`` … are weights that audits take, in ``client-0`` with what the first client
keeps to itself, if that is anything. Every file is written whole or not at all.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradaudit.core.files import clear_temporaries, write_atomically
from gradaudit.errors import CheckpointError, GradauditError, UsageError
from gradaudit.federation.canaries import FILE as CANARIES
from gradaudit.federation.federated_training import FederatedTraining, Round
from gradaudit.federation.settings import TrainingOptions
from gradaudit.progress import Progress, Silent

SUMMARY, STATE = "run.json", "resume.safetensors"
ROUND = "round-{:03d}.safetensors"
CLIENT = "client-0"
MAX_BYTES = 1 << 28
_MAY_GROW = "rounds"
_EARLIER = {name: field.default for name, field in TrainingOptions.model_fields.items()}
"""Values that options had in runs from before the options existed."""


class RoundRecord(BaseModel):
    """A round in the summary; accuracies are those of ``TaskAccuracy``, R² for real targets."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    round: int
    file: str
    loss: float | None
    train: float | None
    test: float | None


class RunRecord(BaseModel):
    """The summary of a training.

    ``settings`` are all that decides the numbers; they distinguish this run from others.
    ``records`` is how many are in the data set, and ``measure`` what accuracies are:
    ``accuracy``, ``r2`` or ``none``. ``private`` are tensors that a client never shares; only the
    first client's own checkpoints, in a folder of their own, hold them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    settings: dict[str, JsonValue]
    records: int
    clients: list[list[int]] = Field(description="Indices of each client's records.")
    test: list[int] = Field(description="Indices of the records that nobody trained on.")
    sizes: list[int]
    measure: str = "none"
    rounds: list[RoundRecord] = Field(default_factory=list)
    private: list[str] = Field(default_factory=list)


class RunFolder:
    """A folder for one run, empty or not; it is made where it does not exist.

    Raises:
        UsageError: the folder holds another run or other files, or cannot be written to.
    """

    def __init__(self, path: Path, summary: RunRecord) -> None:
        self.path = path
        self._made = not path.exists()
        self.summary = _claimed(path, summary)

    def write(self, training: FederatedTraining, reached: Round, *, shown: bool) -> None:
        """Save a round; for shown rounds also a checkpoint and a line in the summary."""
        if shown:
            name = ROUND.format(reached.number)
            write_atomically(self.path / name, _packed(reached.state, reached.number))
            if reached.private:
                (self.path / CLIENT).mkdir(exist_ok=True)
                whole = {**reached.state, **reached.private}
                write_atomically(self.path / CLIENT / name, _packed(whole, reached.number))
            kept = [r for r in self.summary.rounds if r.round < reached.number]
            train, test = (acc and acc.value for acc in (reached.train, reached.test))
            record = RoundRecord(
                round=reached.number, file=name, loss=reached.loss, train=train, test=test
            )
            measure = reached.train.metric if reached.train else self.summary.measure
            self._update(rounds=[*kept, record], measure=measure)
        if training.canaries:
            write_atomically(self.path / CANARIES, training.canaries.scores.packed())
        write_atomically(self.path / STATE, _packed(training.memory(), reached.number))

    def resume(self, training: FederatedTraining) -> bool:
        """Resume the training from the run in the folder; returns False for a new run.

        Raises:
            CheckpointError: the kept state is damaged.
        """
        path = self.path / STATE
        if not path.exists():
            self._update()
            return False
        try:
            with safe_open(path, framework="pt") as file:
                number = int((file.metadata() or {})["round"])
                memory = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            training.restore(number, memory)
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise CheckpointError(
                f"{path}: is damaged ({type(error).__name__}); remove the folder and train again"
            ) from error
        return True

    def clear(self) -> None:
        """Remove the unfinished files of a run that was killed."""
        rounds = [record.round for record in self.summary.rounds] or [-1]
        names = [ROUND.format(number) for number in range(rounds[-1] + 2)]
        for name in (SUMMARY, STATE, CANARIES, *names, *(f"{CLIENT}/{name}" for name in names)):
            clear_temporaries(self.path / name)

    def discard(self) -> None:
        """Remove what a run wrote that did not finish its first round."""
        for name in (STATE, CANARIES, f"{CLIENT}/{ROUND.format(0)}", ROUND.format(0), SUMMARY):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):
            (self.path / CLIENT).rmdir()
        if self._made:
            with suppress(OSError):  # somebody else put a file there
                self.path.rmdir()

    def _update(self, **fields: Any) -> None:
        self.summary = self.summary.model_copy(update=fields)
        text = json.dumps(self.summary.model_dump(mode="json"), indent=1)
        lists = r"\[\s+(-?\d+(?:,\s+-?\d+)*)\s+\]"  # of indices, each on a line of its own
        text = re.sub(lists, lambda m: f"[{' '.join(m[1].split())}]", text)
        write_atomically(self.path / SUMMARY, text + "\n")


def train_into(
    folder: RunFolder,
    training: FederatedTraining,
    rounds: int,
    every: int,
    progress: Progress | None = None,
) -> Iterator[Round]:
    """Train up to a round, from where the folder stands, and yield the rounds that are written.

    An interrupted run goes on with the numbers that it would have had.

    Raises:
        GradauditError: the training diverged, a state cannot be restored, or a defense does not go
            with the training. Where no round came through, the folder is left as it was found.
    """
    begun = folder.resume(training)
    with (progress or Silent()).task("training", rounds) as advance:
        advance(training.number)
        if not begun:
            yield _kept(folder, training, shown=True)
        while training.number < rounds:
            try:
                training.advance()
            except GradauditError:
                if not training.number:
                    folder.discard()
                raise
            advance(1)
            shown = training.number % every == 0 or training.number == rounds
            reached = _kept(folder, training, shown=shown)
            if shown:
                yield reached


def _kept(folder: RunFolder, training: FederatedTraining, *, shown: bool) -> Round:
    reached = training.snapshot(scored=shown)
    folder.write(training, reached, shown=shown)
    return reached


def _claimed(path: Path, summary: RunRecord) -> RunRecord:
    """Returns the folder's summary of this same run, or a new one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror or error}; name another folder") from error
    if SUMMARY not in names:
        if names:
            raise UsageError(
                f"--out {path}: holds other files ({names[0]}); name a new or an empty folder"
            )
        return summary
    kept = _read(path / SUMMARY)
    for key in dict.fromkeys([*summary.settings, *kept.settings]):
        now, before = (record.settings.get(key, _EARLIER.get(key)) for record in (summary, kept))
        if now != before and key != _MAY_GROW:
            raise UsageError(
                f"--out {path}: holds another run ({key} was {before!r}, now {now!r}); name "
                "another folder"
            )
    if (kept.clients, kept.test) != (summary.clients, summary.test):
        raise UsageError(f"--out {path}: holds a run on other records; name another folder")
    return kept.model_copy(update={"settings": summary.settings})


def _read(path: Path) -> RunRecord:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(
                f"{path}: larger than {MAX_BYTES:,} bytes, so it is not the summary "
                "of a training; name another folder"
            )
        return RunRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(
            f"{path}: is not the summary of a training; name another folder"
        ) from error


def _packed(state: Mapping[str, Tensor], number: int) -> bytes:
    """Returns a safetensors file, with tied weights under each of their names."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    return safetensors.torch.save(kept, {"round": str(number)})
