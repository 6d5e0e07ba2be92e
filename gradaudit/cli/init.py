"""``gradaudit init`` writes a first configuration and policy into the working directory."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradaudit.cli.init_files import SpecCandidates, configuration, policy
from gradaudit.cli.options import options_of, with_options
from gradaudit.cli.perform import opened, stdout_for_the_report
from gradaudit.config import SubjectSettings, settle
from gradaudit.errors import UsageError
from gradaudit.files import FOUND
from gradaudit.report import Report
from gradaudit.text import listed, printable

if TYPE_CHECKING:
    from gradaudit.audits.job.starting import JobBeginning

POLICY, FEDERATION = Path("policy.yaml"), Path("federation.yaml")
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

    gradaudit init -m sample_models/models.py:digits_cnn -d digits
    gradaudit init --from JOB

    The model and the data that are named are opened, and comments in the files list their layers,
    attributes and task accuracy. A table's number columns are tried as they are and standardised,
    and the scale that fits the model is written. Where nothing is named, comments name the files
    that may be meant. With --from, the model is read from the folder of a Flower app or an NVFlare
    job, its federation is written to federation.yaml, and what could not be read is printed.
    """
    folder: Path | None = flags.pop("source")
    for path in (FOUND, POLICY, *([FEDERATION] if folder else [])):
        if path.exists() or path.is_symlink():
            raise UsageError(f"{path}: is there already, and init overwrites nothing; rename it")
    settings = settle(SubjectSettings, flags, {})
    begun = _begun(folder, settings.model) if folder else None
    if begun is not None:
        settings = settings.model_copy(update={"model": begun.model})
    report, seen = None, list[str]()
    if settings.model and settings.data:
        settings, report, seen = _looked_at(settings)
    given = settings.model_dump()
    given |= {"deployment": str(FEDERATION), "job": {"folder": str(folder)}} if folder else {}
    text = configuration(given, SpecCandidates.of(Path.cwd()), report, seen)
    written = {FOUND: text, POLICY: policy(with_job=bool(folder))}
    written |= {FEDERATION: begun.federation} if begun is not None else {}
    for path, content in written.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
    for sentence in begun.untold if begun is not None else ():
        typer.echo(printable(f"not found: {sentence}", limit=None))
    for line in _next(report is not None, list(written)):
        typer.echo(line)


def _begun(folder: Path, model: str | None) -> "JobBeginning":
    with stdout_for_the_report():
        from gradaudit.audits.job.starting import beginning

        return beginning(folder, model)


def _looked_at(settings: SubjectSettings) -> tuple[SubjectSettings, Report, list[str]]:
    """Returns settings with the scale that fits, a report on model and data, and what was tried."""
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
"""What the file says where both scales give the same accuracy."""


def _next(looked: bool, written: list[Path]) -> list[str]:
    first = [] if looked else [f"fill in model and data in {FOUND}, or name them: init -m … -d …"]
    return [
        f"wrote {listed(list(map(str, written)))}",
        *first,
        "gradaudit scan --dry-run                             says what would run",
        "gradaudit scan -o report.json                        measures",
        "gradaudit gate report.json --policy policy.yaml      judges",
    ]


FROM = inspect.Parameter(
    "source",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Folder of a Flower app or an NVFlare job from which model and federation are "
            "read.",
            show_default=False,
        ),
    ],
)
init = with_options(
    _init,
    [
        FROM,
        *options_of(
            SubjectSettings, "Subject", without=set(SubjectSettings.model_fields) - set(_LOOKED_AT)
        ),
    ],
)
