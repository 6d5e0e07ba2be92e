"""``gradaudit init``: a configuration and a policy to begin with, in the working directory."""

from pathlib import Path
from typing import Any

import typer

from gradaudit.cli.options import FOUND, options_of, with_options
from gradaudit.cli.perform import opened, stdout_for_the_report
from gradaudit.cli.starting import SpecCandidates, configuration, policy
from gradaudit.config import SubjectSettings, settle
from gradaudit.errors import UsageError
from gradaudit.report import Report

POLICY = Path("policy.yaml")
_LOOKED_AT = (
    "model",
    "checkpoint",
    "prefix",
    "weights",
    "partial",
    "data",
    "attribute",
    "loss",
    "mode",
)


def _init(**flags: Any) -> None:
    """Write a commented gradaudit.yaml and policy.yaml into this folder; nothing is overwritten.

    gradaudit init
    gradaudit init -m sample_models/models.py:digits_cnn -d digits

    The model and the data that are named are opened, and the files say what there is: layers,
    attributes, task accuracy. A table's number columns are tried as the file has them and
    standardised, and the file has the scale that fits the model. Without names, files that may be
    meant stand as comments.
    """
    for path in (FOUND, POLICY):
        if path.exists() or path.is_symlink():
            raise UsageError(f"{path}: is there already, and init overwrites nothing; rename it")
    settings = settle(SubjectSettings, flags, {})
    report, seen = None, list[str]()
    if settings.model and settings.data:
        settings, report, seen = _looked_at(settings)
    text = configuration(settings.model_dump(), SpecCandidates.of(Path.cwd()), report, seen)
    for path, content in ((FOUND, text), (POLICY, policy())):
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
    for line in _next(report is not None):
        typer.echo(line)


def _looked_at(settings: SubjectSettings) -> tuple[SubjectSettings, Report, list[str]]:
    """Settings with the scale that fits, a report without a measurement, and what was tried."""
    with stdout_for_the_report():
        from gradaudit.scaling import better, scaling_trials, with_scale

        trials = scaling_trials(settings)
        seen = [trial.sentence for trial in trials]
        if trials:
            scale = better(trials)
            data = with_scale(settings.data or "", scale or "none")
            settings = settings.model_copy(update={"data": data})
            seen.append(f"The model does better with scale={scale}." if scale else _UNTOLD)
    with opened(settings) as subject:
        from gradaudit.runner import run

        return settings, run(subject, []), seen


_UNTOLD = "The model does as well with either scale: say the one that it was trained with."
"""What the file says where the accuracies do not tell the scales apart."""


def _next(looked: bool) -> list[str]:
    first = [] if looked else [f"fill in model and data in {FOUND}, or name them: init -m … -d …"]
    return [
        f"wrote {FOUND} and {POLICY}",
        *first,
        "gradaudit scan --dry-run                             says what would run",
        "gradaudit scan -o report.json                        measures",
        "gradaudit gate report.json --policy policy.yaml      judges",
    ]


init = with_options(
    _init,
    options_of(
        SubjectSettings, "Subject", without=set(SubjectSettings.model_fields) - set(_LOOKED_AT)
    ),
)
