"""``gradaudit scan`` runs every applicable audit of one checkpoint and writes one report."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import typer

from gradaudit.audits import Audit, audits
from gradaudit.audits.job import Job
from gradaudit.audits.presets import Preset
from gradaudit.cli.flags import CONFIG, configured, options_of, parameter, with_options
from gradaudit.cli.perform import (
    expect_writable,
    stdout_for_the_report,
    time_left,
)
from gradaudit.cli.scanning import presets_of, print_plan, survey
from gradaudit.config import (
    OutputSettings,
    RunSettings,
    ScanSettings,
    SubjectSettings,
    section,
    settle,
)
from gradaudit.core.specs import suggest
from gradaudit.errors import UsageError
from gradaudit.judging import read_policy


def _scan(**flags: Any) -> None:
    """Run every applicable audit of a checkpoint, and show one risk table of its layers.

    gradaudit scan --quick
    gradaudit scan -m FILE.py:factory -c weights.safetensors -d 'csv:table.csv?label=income' -a sex

    Without arguments it audits the bundled sample model. With --job the report also says what
    leaves that job's clients, and the model is the job's where --model names none.
    """
    folder = flags.pop("job")
    config, file = configured(flags)
    settings = settle(ScanSettings, flags, file)
    left = time_left(settings.seconds) if settings.seconds else None
    if folder is not None:
        settings, file = with_job(settings, file, folder)
    settings = of_sample_unless_named(settings)
    chosen, passed_over = reading_update(choose_audits(settings, file), settings.update)
    policy = read_policy(settings.policy) if settings.policy else None
    read = [preset.audit.options for presets in chosen for preset in presets]
    expect_writable(settings, config, settings, read)
    if settings.dry_run:
        print_plan(settings, chosen, settings.made_for, policy=policy)
        return
    made_for = settings.made_for
    survey(settings, config, chosen, made_for, left, others=passed_over, policy=policy)


JOB = parameter(
    "job",
    Path | None,
    typer.Option(
        "--job",
        help="Folder of a Flower app or an NVFlare job that is audited too; its model is "
        "audited where --model names none.",
        rich_help_panel="Scan",
        show_default=False,
    ),
)
scan = with_options(
    _scan,
    [
        JOB,
        *options_of(ScanSettings, "Scan", without=RunSettings.model_fields),
        *options_of(SubjectSettings, "Subject"),
        CONFIG,
        *options_of(OutputSettings, "Output"),
    ],
)


def with_job(
    settings: ScanSettings, file: dict[str, Any], folder: Path
) -> tuple[ScanSettings, dict[str, Any]]:
    """Returns settings with the job's model, and options by which the job is audited too.

    Raises:
        UsageError: the folder is no job, or no class of its code makes its model.
    """
    model = settings.model
    if model is None:
        from gradaudit.audits.job.starting import beginning

        with stdout_for_the_report():
            begun = beginning(folder)
        if begun.model is None:
            raise UsageError(f"--job {folder}: {begun.untold[0]}")
        model = begun.model
    named = {**section(file, Job.name), "folder": folder}
    return settings.model_copy(update={"model": model}), {**file, Job.name: named}


def choose_audits(settings: ScanSettings, file: dict[str, Any]) -> list[tuple[Preset, ...]]:
    """Returns the presets of each audit of a scan, with the config file's options on top.

    Raises:
        UsageError: an unknown audit, or both presets.
    """
    if settings.quick and settings.thorough:
        raise UsageError("--quick and --thorough: choose one")
    job = "folder" in section(file, Job.name)
    known = {n: a for n, a in audits().items() if not a.brings_model or (job and n == Job.name)}
    wanted = {name for asked in settings.audits for name in _named(asked, known)}
    return [
        presets_of(audit, settings.exactness, section(file, name))
        for name, audit in known.items()
        if not settings.audits or name in wanted
    ]


Presets = tuple[Preset, ...]


def reading_update(
    chosen: list[Presets], update: str | None
) -> tuple[list[Presets], list[Audit[Any]]]:
    """Splits audits into those that read a captured update, set to read it, and the others.

    Without an update all presets are unchanged.

    Raises:
        UsageError: none of the audits reads captured updates.
    """
    if update is None:
        return chosen, []
    readers = [each for each in chosen if "update" in type(each[0].audit.options).model_fields]
    if not readers:
        raise UsageError(f"--update {update}: none of the chosen audits reads an update")
    others = [each[-1].audit for each in chosen if each not in readers]
    return [tuple(_reading(preset, update) for preset in each) for each in readers], others


def _reading(preset: Preset, update: str) -> Preset:
    options = preset.audit.options.model_copy(update={"update": update})
    return replace(preset, audit=type(preset.audit)(options))


def _named(asked: str, known: Mapping[str, type[Audit[Any]]]) -> list[str]:
    """Names the audits that ``--audits`` means: ``attack`` is all attacks, ``attack-user`` one."""
    names = [
        name
        for name, audit in known.items()
        for spoken in (name, *audit.aliases)
        if asked in (spoken, spoken.replace(" ", "-"), name.split()[0])
    ]
    if not names:
        raise UsageError(
            f"--audits {asked}: no such audit{suggest(asked, known)}; there are: {', '.join(known)}"
        )
    return names


FOLDER = "sample_models"
S = TypeVar("S", bound=SubjectSettings)


def sample_folder() -> Path:
    """Returns the folder of sample models, in the checkout or in the installation.

    Relative to the working directory where it lies in it.

    Raises:
        UsageError: neither holds one.
    """
    places = (
        Path(__file__).parents[3] / FOLDER,
        Path(sysconfig.get_path("data")) / "share" / "gradaudit" / FOLDER,
    )
    for place in places:
        if (place / "models.py").is_file():
            here = Path.cwd()
            return place.relative_to(here) if place.is_relative_to(here) else place
    raise UsageError("the sample models are not installed; name --model and --data")


def of_sample_unless_named(settings: S) -> S:
    """Returns settings that audit the bundled digits model after its last round.

    Settings that name a model, data or a checkpoint stay as they are; a named attribute stays too.
    """
    if settings.model or settings.data or settings.checkpoint:
        return settings
    folder = sample_folder()
    sample = {
        "model": f"{folder / 'models.py'}:digits_cnn",
        "checkpoint": (max((folder / "digits").glob("round-*.safetensors")),),
        "data": "digits",
        "attribute": settings.attribute or ("slant",),
    }
    return settings.model_copy(update=sample)
