"""``gradaudit init`` writes a first configuration and policy into the working directory."""

import ast
import csv
import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import yaml

from gradaudit.cli.flags import options_of, parameter, with_options
from gradaudit.cli.perform import opened, stdout_for_the_report
from gradaudit.config import ScanSettings, SubjectSettings, read_file, settle
from gradaudit.core.files import FOUND, write_atomically
from gradaudit.core.text import listed, printable
from gradaudit.deployment import read_deployment
from gradaudit.errors import UsageError
from gradaudit.measurement import dict_of
from gradaudit.report import Report
from gradaudit.trust import trust
from gradaudit.view.facts import data_facts, preparation, title, warnings

if TYPE_CHECKING:
    from gradaudit.audits.job.starting import JobBeginning


WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt")
TABLES = {
    ".csv": "csv:{}?label=COL",
    ".parquet": "parquet:{}?label=COL",
    ".npz": "npz:{}?label=COL",
    ".jsonl": "text:{}?text=COL&label=COL",
}
_MOST_BYTES = 1 << 20
_MOST_FILES = 200
_MOST_SHOWN = 30
_WIDTH = 96


@dataclass(frozen=True)
class SpecCandidates:
    """Specs that the files of a folder suggest by their names; no file is opened or run."""

    model: Sequence[str]
    checkpoint: Sequence[str]
    data: Sequence[str]
    columns: Sequence[str]
    """A sentence for each table that names its columns."""

    @classmethod
    def of(cls, folder: Path) -> "SpecCandidates":
        """Reads the names of a folder's files, and the source of its Python files."""
        inside = sorted(folder.iterdir())[:_MOST_FILES]
        files = [path for path in inside if path.is_file() and os.access(path, os.R_OK)]
        saved = [f"hf:{path.name}" for path in inside if (path / "config.json").is_file()]
        return cls(
            [*(f"{file.name}:{name}" for file in files for name in _factories(file)), *saved],
            [file.name for file in files if file.suffix in WEIGHTS],
            [TABLES[f.suffix].format(f.name) for f in files if f.suffix in TABLES],
            [f"{f.name} has {', '.join(_header(f))}" for f in files if f.suffix == ".csv"],
        )


def _header(file: Path) -> list[str]:
    """Returns the columns of a table, read from its first bytes."""
    with file.open("rb") as stream:
        line = stream.readline(1 << 14).decode(errors="replace")
    return next(csv.reader([line]), [])[:_MOST_SHOWN]


def _factories(file: Path) -> Iterator[str]:
    """Returns the names of a file's functions that return a model, and of its model classes."""
    if file.suffix != ".py" or file.stat().st_size > _MOST_BYTES:
        return
    try:
        nodes = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in nodes:
        kinds = node.bases if isinstance(node, ast.ClassDef) else []
        kinds = [node.returns] if isinstance(node, ast.FunctionDef) and node.returns else kinds
        if any(ast.unparse(kind).rpartition(".")[2] == "Module" for kind in kinds):
            yield getattr(node, "name")  # noqa: B009 - both kinds of node have one


def configuration(
    given: Mapping[str, Any],
    found: SpecCandidates,
    report: Report | None,
    seen: Sequence[str] = (),
) -> str:
    """Returns a configuration file with the given settings, and suggestions as comments.

    Args:
        given: settings by field name; empty ones are not given.
        found: what to offer for those that are not.
        report: of the model and data that were given, without a measurement.
        seen: what was seen of the data when its options were tried, a sentence each.
    """
    offers = {
        "model": found.model or ["FILE.py:factory"],
        "checkpoint": [[name] for name in found.checkpoint] or [["weights.safetensors"]],
        "data": found.data or ["csv:FILE.csv?label=COL"],
        "attribute": [[name] for name in _attributes(report)] or [["NAME"]],
        "hide": [["GLOB"]],
        "defense": [["dp:clip=1,sigma=0.1"]],
        "deployment": ["federation.yaml"],
        "expected-accuracy": [0.9],
        "budget": ["5m"],
        "output": [["report.json", "report.html"]],
        "policy": ["policy.yaml"],
    }
    blocks = [_opening(report)]
    for key, examples in offers.items():
        name = key.replace("-", "_")
        about = [*_about(name, found, report), *(seen if name == "data" else ())]
        blocks.append(_entry(key, given.get(name), examples, about))
    fields = SubjectSettings.model_fields
    blocks += [
        _entry(key, given[key], [], _about(key, found, report))
        for key in ("prefix", "state_dict", "partial", "loss", "mode")  # which are rarely needed
        if given.get(key, fields[key].default) != fields[key].default
    ]
    if job := given.get("job"):
        blocks.append(_entry("job", job, [], ["The job that `gradaudit job` and scans audit too."]))
    return "\n\n".join(blocks) + "\n"


POLICY_TEXT = """\
# Limits by which `gradaudit gate` and `gradaudit scan --policy` judge a report.
# The default rules with their reasons: gradaudit gate --print-default-policy
extends: default

# Rules of your own; one without layers replaces the default rule of its metric and level.
# rules:
#   - {metric: vinfo.auroc, max: 0.7, level: error}

# Values that may stay beyond their limit, why, and until when:
# ignore:
#   - {metric: vinfo.*, layers: fc1, reason: stays on the client, until: 2027-01-31}

# What becomes of a value that is neither shown to be beyond its limit nor within it: pass, warn
# (the verdict is UNDECIDED, with exit status 0) or fail (UNDECIDED, with exit status 1).
unclear: warn

# Correct intervals for the number of rules and layers:
# family: holm
"""
"""The policy that init writes."""


def _opening(report: Report | None) -> str:
    lines = [
        "What gradaudit audits in this folder: commands read this file, and flags win over it.",
        "All keys: gradaudit schema config. What would run: gradaudit scan --dry-run.",
    ]
    if report is not None:
        looked = [title(report), data_facts(report), preparation(report), *warnings(report)]
        lines += ["", *filter(None, looked)]
    return _comment(lines)


def _about(name: str, found: SpecCandidates, report: Report | None) -> list[str]:
    """Explains a field, and lists what the model or the data offers for it."""
    lines = [ScanSettings.model_fields[name].description or ""]
    lines += found.columns if name == "data" and report is None else []
    if report is not None and name == "attribute":
        lines += [f"The data has {n}: {_counts(c)}" for n, c in _attributes(report).items()]
    if report is not None and name == "hide":
        layers = report.target.layers
        lines += [f"{x.name} ({x.kind}, {x.parameters:,} parameters)" for x in layers[:_MOST_SHOWN]]
        lines += [f"… and {len(layers) - _MOST_SHOWN} more layers"] * (len(layers) > _MOST_SHOWN)
    return lines


def _attributes(report: Report | None) -> dict[str, Any]:
    return dict_of(report.data.get("attributes")) if report else {}


def _counts(counts: Any) -> str:
    items = list(dict_of(counts).items())
    shown = ", ".join(f"{value} ({count:,})" for value, count in items[:6])
    return shown + (f" and {len(items) - 6} more values" if len(items) > 6 else "")


def _entry(key: str, value: Any, examples: Iterable[Any], about: Sequence[str]) -> str:
    lines = [_comment(about)]
    if value not in (None, (), []):
        lines.append(_line(key, value))
    else:
        lines += [f"# {_line(key, example)}" for example in examples]
    return "\n".join(lines)


def _line(key: str, value: Any) -> str:
    """Formats a key and its value as YAML; characters that a terminal cannot show are escaped."""
    plain = [str(item) for item in value] if isinstance(value, tuple) else value
    parts = plain.values() if isinstance(plain, dict) else plain
    parts = parts if isinstance(value, dict | list | tuple) else [plain]
    shown = all(str(part).isprintable() for part in parts)
    style = None if shown else '"'  # line breaks are escaped in double quotes alone
    text = yaml.safe_dump(
        plain, default_flow_style=True, default_style=style, allow_unicode=shown, width=math.inf
    )
    return f"{key}: " + text.removesuffix("...\n").rstrip()


def _comment(paragraphs: Iterable[str]) -> str:
    """Wraps paragraphs as lines that begin with ``#``; file names are not broken."""
    return "\n".join(
        line
        for paragraph in paragraphs
        for line in textwrap.wrap(
            printable(paragraph, limit=None),
            _WIDTH,
            initial_indent="# ",
            subsequent_indent="# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        or ["#"]
    )


POLICY, FEDERATION = Path("policy.yaml"), Path("federation.yaml")
_LOOKED_AT = {"model", "checkpoint", "prefix", "partial", "data", "attribute", "loss", "mode"}


def _init(**flags: Any) -> None:
    """Write a commented gradaudit.yaml and policy.yaml; nothing is overwritten.

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
    begun: JobBeginning | None = None
    if folder:
        from gradaudit.audits.job.starting import beginning

        with stdout_for_the_report():
            begun = beginning(folder, settings.model)
        mode = begun.mode if flags.get("mode") is None else None
        more = {"model": begun.model, **({"mode": mode} if mode else {})}
        settings = settings.model_copy(update=more)
    report, seen = None, list[str]()
    if settings.model and settings.data:
        settings, report, seen = _looked_at(settings)
    given = settings.model_dump()
    given |= {"deployment": str(FEDERATION), "job": {"folder": str(folder)}} if folder else {}
    text = configuration(given, SpecCandidates.of(Path.cwd()), report, seen)
    written = {FOUND: text, POLICY: POLICY_TEXT}
    written |= {FEDERATION: begun.federation} if begun is not None else {}
    try:
        for path, content in written.items():
            write_atomically(path, content)
    except UsageError:
        for path in written:  # none of which was there before
            path.unlink(missing_ok=True)
        raise
    trust(FOUND, read_file(FOUND))
    for sentence in begun.untold if begun is not None else ():
        typer.echo(printable(f"not found: {sentence}", limit=None))
    missing = [name for name in ("model", "data") if getattr(settings, name) is None]
    for line in _next(missing, list(written)):
        typer.echo(line)


def _looked_at(settings: SubjectSettings) -> tuple[SubjectSettings, Report, list[str]]:
    """Returns settings with the scale that fits, a report on model and data, and what was tried."""
    from gradaudit.run.runner import run
    from gradaudit.run.scaling import better, scaling_trials, with_scale

    with stdout_for_the_report():
        trials = scaling_trials(settings)
        seen = [trial.sentence for trial in trials]
        if trials:
            scale = better(trials)
            data = with_scale(settings.data or "", scale or "none")
            settings = settings.model_copy(update={"data": data})
            seen.append(f"The model does better with scale={scale}." if scale else _EITHER_SCALE)
    with opened(settings) as subject:
        return settings, run(subject, []), seen


_EITHER_SCALE = "The model does as well with either scale: say the one that it was trained with."
"""What the file says where both scales give the same accuracy."""


def _next(missing: Sequence[str], written: Sequence[Path]) -> list[str]:
    first = [f"fill in {' and '.join(missing)} in {FOUND}"] if missing else []
    if FEDERATION in written:
        try:
            read_deployment(FEDERATION)
        except UsageError as error:
            first.append(f"fill in {error}")
    return [
        f"wrote {listed(list(map(str, written)))}",
        *first,
        "gradaudit scan --dry-run                             says what would run",
        "gradaudit scan -o report.json                        measures",
        "gradaudit gate report.json --policy policy.yaml      judges",
    ]


FROM = parameter(
    "source",
    Path | None,
    typer.Option(
        "--from",
        help="Folder of a Flower app or an NVFlare job from which model and federation are read.",
        show_default=False,
    ),
)
init = with_options(
    _init,
    [
        FROM,
        *options_of(
            SubjectSettings, "Subject", without=set(SubjectSettings.model_fields) - _LOOKED_AT
        ),
    ],
)
