"""Settings of a run: a YAML file, with flags that win over it, checked before anything starts.

Every field of these models is a key of the file and a flag of the command line, so each option is
declared, described and validated in one place.
"""

import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator

from gradaudit.audits import audits
from gradaudit.audits.base import split_at_commas
from gradaudit.audits.presets import PresetName
from gradaudit.core.parts import declared
from gradaudit.core.yaml_file import read_yaml
from gradaudit.deployment import Deployment
from gradaudit.errors import UsageError
from gradaudit.federation.settings import TrainingOptions
from gradaudit.presentation import STDOUT, Shape, shape_of

M = TypeVar("M", bound=BaseModel)
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


class _Settings(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=True,
    )


class SubjectSettings(_Settings):
    """Settings of the subject: model, checkpoints, data, layers, and how they are run."""

    model: str | None = Field(
        None,
        description="Model under audit: zoo:NAME, torchvision:NAME, hf:DIR of transformers "
        "(?adapter=DIR of PEFT), FILE.py:factory, package.module:factory, or ARCHIVE.pt2 of "
        "torch.export; options follow as ?key=value&…. The last three are code that is run.",
        json_schema_extra={"short": "-m"},
    )
    checkpoint: tuple[Path, ...] = Field(
        (),
        description="File of the model's weights (safetensors, also in shards: the folder or its "
        "index.json; a state dict; a NumPy archive, named or in order); repeat it for several "
        "training rounds, oldest first.",
        json_schema_extra={"short": "-c"},
    )
    prefix: str | None = Field(
        None,
        description="Prefix of the checkpoint's keys that is replaced, OLD=NEW, as in backbone.= "
        "or =backbone. (one that all keys share is stripped without it).",
    )
    state_dict: str | None = Field(
        None,
        description="Key of the state dict to audit where a checkpoint holds several.",
    )
    partial: bool = Field(
        False,
        description="Load only the tensors whose name and shape fit the model; the rest stays "
        "random, and the report warns of it.",
    )
    data: str | None = Field(
        None,
        description="Records to audit with, as csv:FILE?label=COL, images:DIR, "
        "text:FILE?text=COL&label=COL or FILE.py:factory; `gradaudit list data` shows every kind "
        "with its options, and `gradaudit explain csv` one of them.",
        json_schema_extra={"short": "-d"},
    )
    attribute: tuple[str, ...] = Field(
        (),
        description="Private attribute of the records; repeat it, or use commas, for several.",
        json_schema_extra={"short": "-a"},
    )
    loss: str = Field(
        "cross-entropy",
        description="Loss that clients minimise: "
        f"{', '.join(declared('gradaudit.models.losses'))}, or FILE.py:NAME.",
    )
    mode: Literal["eval", "train"] = Field(
        "eval", description="Mode in which clients run BatchNorm and dropout."
    )
    layer: tuple[str, ...] = Field(
        (), description="Glob of the layers to audit; repeat it for several."
    )
    hide: tuple[str, ...] = Field(
        (), description="Glob of the layers that are never shared; repeat it for several."
    )
    defense: tuple[str, ...] = Field(
        (),
        description="Defense of what is shared: prune:0.99, sign, dp:clip=C,sigma=S, "
        "selective:0.05, … (see `gradaudit list defenses`); repeat it for several, applied in "
        "order.",
    )
    expected_accuracy: float | None = Field(
        None,
        le=1,
        allow_inf_nan=False,
        description="Accuracy, or R², that the model should reach on these records; the report "
        "warns where it does not.",
    )
    deployment: Path | None = Field(
        None,
        description="YAML file that describes your federation (clients, batches, local training, "
        "aggregation, defenses, who sees what); audits follow it where no option differs.",
    )
    samples: int | None = Field(
        None, ge=1, description="Number of records that each audit measures."
    )
    seed: int = Field(0, ge=0, lt=1 << 63, description="Seed of all random draws.")
    device: Literal["cpu", "cuda", "auto"] = Field("auto", description="Device to compute on.")
    dtype: Literal["auto", "float64", "float32"] = Field(
        "auto",
        description="Precision of the gradients in sensitivity, subspace, forward, "
        "malicious-server, and of updates to rebuild from; auto takes float64, but float32 on a "
        "device that is slow at float64. Ranks and floors always take float64, classifiers "
        "float32.",
    )
    jobs: int = Field(
        1,
        ge=1,
        le=1024,
        description="Number of processor cores to use; with --executor, the number of units of "
        "work that run at a time (without it as many as there are workers).",
    )
    executor: str = Field(
        "loky",
        description="Executor that runs the units of work: loky (processes of this machine), "
        "dask:ADDRESS, ray:ADDRESS.",
    )


class OutputSettings(_Settings):
    """Settings of the report's output."""

    output: tuple[Path, ...] = Field(
        (),
        description="File to write the report to; its suffix names the format, and - is standard "
        "output, as JSON. Finished work is kept beside it, so that a command that was killed "
        "resumes there.",
        json_schema_extra={"short": "-o"},
    )
    format: Shape = Field(
        "table",
        description="Format of the report on standard output.",
        json_schema_extra={"short": "-f"},
    )
    all: bool = Field(
        False,
        description="Show every finding, layer and metric in the table, not only the gravest.",
    )
    redact: bool = Field(
        False, description="Replace attribute values, column names and paths by placeholders."
    )
    quiet: bool = Field(False, description="Show no progress.", json_schema_extra={"short": "-q"})
    verbose: bool = Field(
        False, description="Show tracebacks and warnings.", json_schema_extra={"short": "-v"}
    )

    @property
    def files(self) -> tuple[Path, ...]:
        """Files to write, without standard output."""
        return tuple(path for path in self.output if path != STDOUT)

    @property
    def shape(self) -> Shape:
        """Format on standard output: the one asked for, else JSON for a dash, else a table."""
        return shape_of(self.format if "format" in self.model_fields_set else None, self.output)


class RunSettings(SubjectSettings, OutputSettings):
    """Settings of a single audit's command, besides the audit's own options."""


class BudgetSettings(RunSettings):
    """Settings of a command with a time budget."""

    policy: Path | None = Field(
        None, description="Policy that judges the report; the command exits with 1 where it fails."
    )
    exit_zero: bool = Field(False, description="Exit with 0 where the verdict is FAILED.")

    budget: str | None = Field(
        None,
        description="Deadline of the command (90s, 5m, 2h): audits run in a fixed order, at "
        "presets made for that time, and the report names what was cut short or left out. A sweep "
        "runs every setting at the same preset.",
    )
    dry_run: bool = Field(
        False, description="Print what would run and about how long it would take, and exit."
    )

    @field_validator("budget", mode="before")
    @classmethod
    def _duration(cls, given: object) -> object:
        if given is not None:
            seconds_of(str(given))
        return given

    @property
    def seconds(self) -> float | None:
        """The time budget; None where there is none."""
        return seconds_of(self.budget) if self.budget else None


SECONDS: dict[PresetName, float] = {"quick": 60.0, "plain": 300.0, "thorough": 3600.0}
"""Seconds of two usual cores that a scan at each preset is made for."""


class ScanSettings(BudgetSettings):
    """Settings of ``scan``, besides the audits' own sections."""

    audits: tuple[str, ...] = Field(
        (),
        description="Audits to run (without it all that apply); repeat it, or use commas, for "
        "several.",
    )
    _names = field_validator("audits", mode="before")(split_at_commas)
    update: str | None = Field(
        None,
        description="Captured update to audit (a file of `gradaudit capture`, or OLD,NEW); audits "
        "that need more than the update are skipped.",
    )
    quick: bool = Field(False, description="Run the smallest preset, made for about 1 minute.")
    thorough: bool = Field(False, description="Run the largest preset, made for about 60 minutes.")

    @property
    def exactness(self) -> PresetName:
        """The preset: as named, else the largest that is made for no more than the budget."""
        if self.quick or self.thorough:
            return "quick" if self.quick else "thorough"
        budget = self.seconds or SECONDS["plain"]
        fitting = [name for name, seconds in SECONDS.items() if seconds <= budget]
        return fitting[-1] if fitting else "quick"

    @property
    def made_for(self) -> float:
        """Seconds of two usual cores that all audits are made for."""
        return self.seconds or SECONDS[self.exactness]


class PlanSettings(ScanSettings):
    """Settings of ``plan``, besides the audits' own sections."""

    cost: Literal["parameters", "bytes"] = Field(
        "parameters",
        description="Cost that the plan keeps low: what is hidden or drowned in noise, as a share "
        "of the trainable parameters or of a message's bytes.",
    )
    means: tuple[Literal["hide", "noise"], ...] = Field(
        ("hide", "noise"),
        description="Defense that the plan may apply to a layer; repeat it for several. Hiding a "
        "layer is always allowed.",
    )
    rounds: int = Field(
        2,
        ge=1,
        le=10,
        description="Number of parts of the records on which plans are verified, one after the "
        "other, until one passes.",
    )
    strict: bool = Field(False, description="Treat undecided rules as failures.")

    @property
    def exactness(self) -> PresetName:
        """The largest preset, smaller than a scan's because a plan makes many trials."""
        return "plain" if self.thorough else "quick"


def seconds_of(duration: str) -> float:
    """Returns the seconds of ``90s``, ``5m`` or ``1h30m``; a number needs its unit.

    Raises:
        ValueError: it is no such text.
    """
    match = _DURATION.fullmatch(duration.strip())
    numbers = [float(number or 0) for number in match.groups()] if match else []
    seconds = sum(n * unit for n, unit in zip(numbers, (3600, 60, 1), strict=False))
    if not seconds:
        raise ValueError("write a time with its unit, as 90s, 5m or 2h")
    return seconds


class TrainSettings(SubjectSettings, TrainingOptions):
    """Settings of ``train``."""

    mode: Literal["eval", "train"] = Field(
        "train", description="Mode in which clients run BatchNorm and dropout."
    )
    test_share: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Share of the records that is kept for testing (without it the data set's "
        "non-members, or 0.2 where it names none).",
    )
    every: int = Field(
        1,
        ge=1,
        description="Number of rounds between checkpoints that are written and scored; the "
        "last round always is.",
    )
    out: Path | None = Field(
        None, description="Folder of the checkpoints; an interrupted run in it is resumed."
    )
    quiet: bool = Field(False, description="Show no progress.", json_schema_extra={"short": "-q"})
    verbose: bool = Field(
        False, description="Show tracebacks and warnings.", json_schema_extra={"short": "-v"}
    )


@cache
def file_model() -> type[BaseModel]:
    """The model of a config file: ``scan``'s settings and a section of options for each audit."""
    sections: dict[str, Any] = {
        _section_of(name): (
            kind.Options,
            Field(default_factory=kind.Options, description=kind.summary),
        )
        for kind in audits().values()
        for name in (kind.name, *kind.aliases)
    }
    return create_model("Config", __base__=ScanSettings, **sections)


def read_file(path: Path | None) -> dict[str, Any]:
    """Read a config file and return its values by field name; empty without a file.

    Raises:
        UsageError: the file cannot be read, or a key is unknown or its value out of range.
    """
    if path is None:
        return {}
    return read_yaml(path, file_model(), "gradaudit schema config").model_dump(exclude_unset=True)


def deployed(
    file: dict[str, Any], deployment: Deployment, names: Collection[str] | None = None
) -> dict[str, Any]:
    """A config file's values laid over those of a federation, for every audit.

    Args:
        file: as ``read_file`` gives it.
        deployment: the federation.
        names: only these settings and options; None is all of them.
    """
    merged = {**_chosen(deployment.of_subject(), names), **file}
    for name, audit in audits().items():
        if deployed := _chosen(audit.Options.deployed(deployment), names):
            merged[_section_of(name)] = {**deployed, **section(file, name)}
    return merged


def _chosen(values: dict[str, Any], names: Collection[str] | None) -> dict[str, Any]:
    return {name: value for name, value in values.items() if names is None or name in names}


def section(file: dict[str, Any], audit: str) -> dict[str, Any]:
    """Returns the config file's options of one audit."""
    kind, options = audits().get(audit), dict[str, Any]()
    for name in (*(kind.aliases if kind else ()), audit):
        options |= file.get(_section_of(name), {})
    return options


def _section_of(audit: str) -> str:
    return audit.replace("-", "_").replace(" ", "_")


def settle(model: type[M], flags: dict[str, Any], file: dict[str, Any]) -> M:
    """Returns settings from the defaults, the file's values over them, and flags over both.

    Args:
        model: the settings to make.
        flags: values by field name; None means that the flag was not given. Other commands'
            fields are passed over, as they are in ``file``.
        file: the config file's values.

    Raises:
        UsageError: a value is out of range.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    values = {name: v for name, v in {**file, **given}.items() if name in model.model_fields}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        what = fault["msg"].removeprefix("Value error, ")
        if not fault["loc"]:
            raise UsageError(what) from error
        flag = "--" + str(fault["loc"][0]).replace("_", "-")
        raise UsageError(f"{flag}: {what} (got {fault['input']!r})") from error
