"""The commands ``train`` and ``capture``, which write checkpoints and updates for audits."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gradaudit.cli.flags import CONFIG, configured, options_of, with_options
from gradaudit.cli.perform import stdout_for_the_report
from gradaudit.cli.reports import Verbose
from gradaudit.cli.terminal import watcher
from gradaudit.config import SubjectSettings, TrainSettings, settle
from gradaudit.core.files import expect_other_files
from gradaudit.core.text import listed, printable
from gradaudit.errors import UsageError

_PASSED_OVER = ("attribute", "layer", "hide", "samples", "expected_accuracy", "mode", "deployment")
_OUTPUT = ("quiet", "verbose")


def _train(**flags: Any) -> None:
    """Train a small federation (FedSGD, FedAvg, round robin); write a checkpoint every round.

    gradaudit train -m 'zoo:mlp?inputs=10&classes=2' -d diabetes --out run
    gradaudit train -m FILE.py:factory -d 'csv:table.csv?label=income' --algorithm fedavg --out run

    The checkpoints go to the folder --out, with a summary, run.json: accuracy by round, settings,
    and which records are whose. Audits take them with -c, oldest first. With a defense that gives
    clients a private part (spn) they are without it, and the folder client-0 holds the first
    client's, who has it. The same settings and seed give the same files. An interrupted run goes on
    where it stands when the command is given again; with more --rounds a finished one does too. A
    folder that holds anything else is refused.
    """
    from gradaudit.run.training import train

    _, file = configured(flags)
    settings = settle(TrainSettings, flags, file)
    if settings.out is None:
        raise UsageError("--out is needed: name a folder for the checkpoints")
    if len(settings.checkpoint) > 1:
        raise UsageError("--checkpoint: training starts from one; name it once")
    if settings.hide:
        raise UsageError("--hide: all layers are trained together; take it out of the file")
    with stdout_for_the_report():
        lines = train(settings, settings.out, watcher(settings.quiet))
    for line in lines:
        typer.echo(line)


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


SUFFIX = ".safetensors"


def capture(
    old: Annotated[Path, typer.Argument(help="File of the weights that the client received.")],
    new: Annotated[
        Path,
        typer.Argument(help="File that the client sent: its weights, or the difference to them."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Safetensors file to write.")],
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            help="Model that names arrays saved in order, and says which are buffers: zoo:NAME, "
            "FILE.py:factory, …",
        ),
    ] = None,
    kind: Annotated[
        Literal["weights", "difference"] | None,
        typer.Option(
            "--kind",
            help="Kind of the file that the client sent (by default found by comparing both "
            "files).",
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(
            "--rate", help="Learning rate that the difference is divided by (1 where unknown)."
        ),
    ] = 1.0,
    verbose: Verbose = False,
) -> None:
    """Save a client's update as named arrays: (OLD - NEW) / rate.

    gradaudit capture old.safetensors new.safetensors -o update.safetensors
    gradaudit capture old.npz new.npz -m FILE.py:factory --rate 0.1 -o update.safetensors

    `attack reconstruct`, `attack text`, `observe` and `scan` read it with --update. Arrays are
    matched by name; those without names only where every shape is that of its place in the model.
    """
    from gradaudit.models.building import load_model
    from gradaudit.observer.saved_updates import captured, save_update

    if output.suffix != SUFFIX:
        raise UsageError(f"-o {output}: updates are saved as safetensors; name a file {SUFFIX}")
    if not 0 < rate < math.inf:
        raise UsageError(f"--rate {rate:g}: a learning rate is above 0, and finite")
    expect_other_files([output], [old, new])
    with stdout_for_the_report():
        named = load_model(model) if model else None
        update = captured(old, new, model=named, kind=kind)
        save_update(output, update, rate)
    elements = sum(array.numel() for array in update.after.values())
    typer.echo(
        f"{printable(str(output))}: {len(update.after)} arrays, {elements:,} elements, from "
        f"{'two sets of weights' if update.kind == 'weights' else 'a difference'}"
    )
    if update.apart:
        typer.echo(f"  left aside: {listed([f'{n} ({why})' for n, why in update.apart.items()])}")
    if update.hidden:
        typer.echo(f"  did not leave: {listed(update.hidden)}")
