"""``gradaudit train`` runs a small federated training whose rounds can be audited."""

from typing import Any

import typer

from gradaudit.cli.options import CONFIG, configured, options_of, with_options
from gradaudit.cli.perform import stdout_for_the_report
from gradaudit.cli.terminal import watcher
from gradaudit.config import SubjectSettings, TrainSettings, settle
from gradaudit.errors import UsageError

_PASSED_OVER = ("attribute", "layer", "hide", "samples", "expected_accuracy", "mode", "deployment")
_OUTPUT = ("quiet", "verbose")


def _train(**flags: Any) -> None:
    """Train a model federatedly (FedSGD, FedAvg, round robin); write a checkpoint every round.

    gradaudit train -m 'zoo:mlp?inputs=10&classes=2' -d diabetes --out run
    gradaudit train -m FILE.py:factory -d 'csv:table.csv?label=income' --algorithm fedavg --out run

    The checkpoints go to the folder --out, with a summary, run.json: accuracy by round, settings,
    and which records are whose. Audits take them with -c, oldest first. With a defense that gives
    clients a private part (spn) they are without it, and the folder client-0 holds the first
    client's, who has it. The same settings and seed give the same files. An interrupted run goes on
    where it stands when the command is given again; with more --rounds a finished one does too. A
    folder that holds anything else is refused.
    """
    _, file = configured(flags)
    settings = settle(TrainSettings, flags, file)
    if settings.out is None:
        raise UsageError("--out is needed: name a folder for the checkpoints")
    if len(settings.checkpoint) > 1:
        raise UsageError("--checkpoint: training starts from one; name it once")
    if settings.hide:
        raise UsageError("--hide: all layers are trained together; take it out of the file")
    with stdout_for_the_report():
        from gradaudit.training import train as trained

        lines = trained(settings, settings.out, watcher(settings.quiet))
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
