"""Runs ``gradaudit train``: from settings to a folder of checkpoints and printed lines."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradaudit.config import TrainSettings
from gradaudit.core.text import printable
from gradaudit.core.user_code import code_digest
from gradaudit.data.records import fingerprint
from gradaudit.defenses import parse_defense
from gradaudit.defenses.attachment import private_names
from gradaudit.executors.locking import locked
from gradaudit.federation.canaries import CanaryScores
from gradaudit.federation.federated_training import FederatedTraining
from gradaudit.federation.partition import split
from gradaudit.federation.resume import CLIENT, RunFolder, RunRecord, train_into
from gradaudit.federation.settings import TrainingOptions
from gradaudit.progress import Progress
from gradaudit.run.opening import load
from gradaudit.subject import Subject


def train(settings: TrainSettings, out: Path, progress: Progress) -> list[str]:
    """Train into a locked folder, and return lines that report the training.

    Raises:
        GradauditError: another run uses the folder; also the errors of ``RunFolder`` and
            ``train_into``.
    """
    subject = load(settings)
    with locked(out, f"--out {out}"):
        training, folder = _set_up(settings, subject, out)
        folder.clear()
        done = list(train_into(folder, training, settings.rounds, settings.every, progress))
    return list(_summary(folder.summary, out, [round_.number for round_ in done]))


def _set_up(
    settings: TrainSettings, subject: Subject, out: Path
) -> tuple[FederatedTraining, RunFolder]:
    options = TrainingOptions.model_validate(
        settings.model_dump(include=set(TrainingOptions.model_fields))
    )
    kept, tested = split(subject.records, settings.test_share, settings.seed)
    training = FederatedTraining(
        subject.target,
        subject.records.take(kept),
        options,
        defenses=subject.defenses,
        seed=settings.seed,
        test=subject.records.take(tested) if len(tested) else None,
    )
    clients = [kept[part].tolist() for part in training.parts]
    summary = RunRecord(
        settings=_identity(settings, options, subject),
        records=len(subject.records),
        clients=clients,
        test=tested.tolist(),
        sizes=[len(client) for client in clients],
        private=list(private_names(training.target.model)),
    )
    return training, RunFolder(out, summary)


def _identity(
    settings: TrainSettings, options: TrainingOptions, subject: Subject
) -> dict[str, Any]:
    """Returns everything that identifies the run, as its numbers depend on it."""
    fields = {"model", "data", "loss", "mode", "seed", "defense", "test_share"}
    chosen = settings.model_dump(mode="json", include=fields)
    weights = hashlib.sha256()
    for name, tensor in sorted(subject.target.model.state_dict().items()):
        weights.update(name.encode() + tensor.detach().cpu().double().numpy().tobytes())
    return {
        **chosen,
        **options.model_dump(mode="json"),
        "model_code": code_digest(settings.model) if settings.model else None,
        "loss_code": code_digest(settings.loss),
        "data_fingerprint": fingerprint(subject.records),
        "initial_weights": weights.hexdigest(),
    }


def _summary(summary: RunRecord, out: Path, fresh: list[int]) -> Iterator[str]:
    """Formats the rounds as a small table, with the commands to run next."""
    what = {"accuracy": "accuracy", "r2": "R²"}.get(summary.measure, "accuracy")
    sizes = f"{min(summary.sizes)}" + (
        f" to {max(summary.sizes)}" if max(summary.sizes) > min(summary.sizes) else ""
    )
    yield (
        f"{len(summary.sizes)} clients with {sizes} records each, "
        f"{len(summary.test)} records for testing"
    )
    yield f"{'round':>5}  {'loss':>8}  {what + ' train':>14}  {'test':>6}"
    for record in summary.rounds:
        if record.round in fresh or record is summary.rounds[-1]:
            yield (
                f"{record.round:5}  {_number(record.loss):>8}  {_number(record.train):>14}  "
                f"{_number(record.test):>6}"
            )
    name = summary.rounds[-1].file
    private = out / CLIENT / name
    newest = printable(str(private if private.exists() else out / name))
    if summary.settings.get("canaries"):
        yield from _of_canaries(out)
    specs = summary.settings.get("defense")
    named = [str(spec) for spec in specs] if isinstance(specs, list) else []
    changing = [spec for spec in named if parse_defense(spec).changes_model]
    defended = "".join(f" --defense '{spec}'" for spec in changing)
    yield f"to audit the last round: gradaudit scan -m MODEL -d DATA -c {newest}{defended}"


def _of_canaries(out: Path) -> Iterator[str]:
    scores = CanaryScores.read(out)
    yield f"{int(scores.included.sum())} of {len(scores.included)} canaries were let in; what of a"
    command = "gradaudit dp-audit -m MODEL -d DATA --mode one-run --canaries"
    yield f"client the run gives away: {command} {printable(str(out))}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
