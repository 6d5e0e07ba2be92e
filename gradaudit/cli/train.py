"""``gradaudit train``: a small federated training whose rounds can be audited."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gradaudit.cli.options import CONFIG, options_of, with_options
from gradaudit.cli.perform import load, stdout_for_the_report
from gradaudit.cli.terminal import watcher
from gradaudit.config import SubjectSettings, read_file, settle
from gradaudit.errors import UsageError
from gradaudit.federation.settings import TrainingOptions, TrainSettings
from gradaudit.text import printable

if TYPE_CHECKING:
    from gradaudit.federation.resume import RunFolder, RunRecord
    from gradaudit.federation.server import Training
    from gradaudit.models.target import Subject

_PASSED_OVER = ("attribute", "layer", "hide", "samples", "expected_accuracy", "mode")
_OUTPUT = ("quiet", "verbose")


def _train(**flags: Any) -> None:
    """Train together (FedSGD, FedAvg, round robin) and write a checkpoint for every round.

    The checkpoints go to the folder --out, with a summary, run.json: accuracy by round, settings,
    and which records are whose. Audits take them with -c, oldest first. With a defense that gives
    clients a private part (spn) they are without it, and the folder client-0 holds the first
    client's, who has it. The same settings and seed give the same files. An interrupted run goes on
    where it stands when the command is given again; with more --rounds a finished one does too. A
    folder that holds anything else is refused.
    """
    settings = settle(TrainSettings, flags, read_file(flags.pop("config")))
    if settings.out is None:
        raise UsageError("--out is needed: name a folder for the checkpoints")
    if len(settings.checkpoint) > 1:
        raise UsageError("--checkpoint: training starts from one; name it once")
    if settings.hide:
        raise UsageError("--hide: all layers are trained together; take it out of the file")
    with stdout_for_the_report():
        lines = list(_lines(settings, settings.out))
    for line in lines:
        typer.echo(line)


def _lines(settings: TrainSettings, out: Path) -> Iterator[str]:
    """Train, and tell of it."""
    from gradaudit.federation.resume import train_into

    subject = load(settings)
    training, folder = _set_up(settings, subject, out)
    progress = watcher(settings.quiet)
    done = list(train_into(folder, training, settings.rounds, settings.every, progress))
    yield from _told(folder.summary, out, [round_.number for round_ in done])


def _set_up(settings: TrainSettings, subject: "Subject", out: Path) -> "tuple[Training, RunFolder]":
    from gradaudit.defenses.modules.attachment import private_names
    from gradaudit.federation.partition import split
    from gradaudit.federation.resume import RunFolder, RunRecord
    from gradaudit.federation.server import Training

    options = TrainingOptions.model_validate(
        settings.model_dump(include=set(TrainingOptions.model_fields))
    )
    kept, tested = split(subject.records, settings.test_share, settings.seed)
    training = Training(
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
    settings: TrainSettings, options: TrainingOptions, subject: "Subject"
) -> dict[str, Any]:
    """What tells this run from others: everything that its numbers depend on."""
    from gradaudit.data.records import fingerprint
    from gradaudit.user_code import code_digest

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


def _told(summary: "RunRecord", out: Path, fresh: list[int]) -> Iterator[str]:
    """The rounds as a small table, and what to do with them."""
    from gradaudit.federation.resume import CLIENT

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
    own = out / CLIENT / name
    newest = printable(str(own if own.exists() else out / name))
    defended = "".join(f" --defense '{spec}'" for spec in _changing(summary))
    yield f"to audit the last round: gradaudit scan -m MODEL -d DATA -c {newest}{defended}"


def _changing(summary: "RunRecord") -> list[str]:
    """Specs of the defenses that must be named again for the checkpoints to fit the model."""
    from gradaudit.defenses import parse_defense

    specs = summary.settings.get("defense")
    named = [str(spec) for spec in specs] if isinstance(specs, list) else []
    return [spec for spec in named if parse_defense(spec).changes_model]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


train = with_options(
    _train,
    [
        *options_of(
            TrainSettings, "Training", without={*SubjectSettings.model_fields, *_OUTPUT} - {"mode"}
        ),
        *options_of(SubjectSettings, "Subject", without=_PASSED_OVER),
        CONFIG,
        *options_of(TrainSettings, "Output", without=set(TrainSettings.model_fields) - {*_OUTPUT}),
    ],
)
