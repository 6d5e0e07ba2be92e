"""The commands of an audit, made from its class: alone, or ``sweep``, over a grid of settings."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer
from pydantic import BaseModel, JsonValue
from rich.console import Console

import gradaudit.cli.deferred as deferred
from gradaudit.audits import Audit
from gradaudit.audits.gathering import AuditRows, incomplete, merge
from gradaudit.cli.flags import (
    CONFIG,
    configured,
    options_of,
    read_configuration,
    read_federation,
    with_options,
)
from gradaudit.cli.perform import (
    asked,
    expect_writable,
    finish,
    opened,
    require_complete,
    show,
    sizes_of,
    stdout_for_the_report,
    survey,
    time_left,
    unfinished,
)
from gradaudit.cli.reports import CURVES, METRIC, RELATIVE, TABLE, SweepFiles, metric_of
from gradaudit.cli.terminal import watcher
from gradaudit.config import (
    BudgetSettings,
    OutputSettings,
    RunSettings,
    SubjectSettings,
    deployed,
    section,
    settle,
)
from gradaudit.core.text import DOUBTS, variant_text
from gradaudit.deployment import Deployment
from gradaudit.errors import UsageError
from gradaudit.formats.base import Stdout
from gradaudit.formats.page import Column, Page, grid
from gradaudit.report import Report, Variant
from gradaudit.sweeping.grid import NAME as RUNG
from gradaudit.sweeping.grid import Axis, expect_known, ladder, points, read_axes
from gradaudit.view.cells import SKIPPED, cell_text

if TYPE_CHECKING:
    from gradaudit.executors.units import Units

WHOLE_MODEL = "(whole model)"


def audit_command(audit: type[Audit[Any]]) -> Callable[..., None]:
    """Make the command that runs this audit alone."""

    def command(**flags: Any) -> None:
        config, file = configured(flags)
        of_run, given = _dealt(audit, flags)
        settings = settle(BudgetSettings, of_run, file)
        if settings.seconds is None:
            _whole(settings, config, audit(_settled(audit, given, file)))
            return
        left = time_left(settings.seconds)
        sizes = sizes_of(audit, "thorough", {**section(file, audit.name), **given})
        expect_writable(settings, config, settings, [size.audit.options for size in sizes])
        survey(settings, config, [sizes], left)

    of_time = options_of(BudgetSettings, "Subject", without=RunSettings.model_fields)
    return with_options(command, [*_parameters(audit), *of_time])


def _whole(settings: RunSettings, config: Path | None, audit: Audit[Any]) -> None:
    """Run an audit with its options as given, without a time budget, and show its report."""
    expect_writable(settings, config, settings, audit.options)
    with unfinished(settings) as units:
        with opened(settings) as subject:
            watch = watcher(settings.quiet)
            report = deferred.runner.run(
                subject, [audit], progress=watch, provenance=asked(config), units=units
            )
        finish(report, settings, subject, units)


def _parameters(audit: type[Audit[Any]]) -> list[inspect.Parameter]:
    return [
        *options_of(audit.Options, "Options"),
        *options_of(SubjectSettings, "Subject", renames=audit.renames),
        CONFIG,
        *options_of(OutputSettings, "Output"),
    ]


def _option(name: str, kind: Any, flag: str, text: str) -> inspect.Parameter:
    option = typer.Option(flag, help=text, rich_help_panel="Sweep", show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


_OWN = [
    _option(
        "over",
        list[str] | None,
        "--over",
        "What is varied, NAME=V1,V2,… (or V1|V2|… where values hold commas): an option of the "
        "audit or the subject, or a NAME that other options hold as {NAME}; repeat for a grid.",
    ),
    _option(
        "ladder",
        bool,
        "--ladder",
        "Climb from the attacker's best case to the federation of --deployment, one change a rung.",
    ),
    _option("curves", Path | None, "--curves", CURVES),
    _option("table", Path | None, "--table", TABLE),
    _option("relative", bool, "--relative", RELATIVE),
    _option("metric", str | None, "--metric", METRIC),
]


def sweep_command(audit: type[Audit[Any]]) -> Callable[..., None]:
    """Make the ``sweep`` command of this audit, over a grid or up the ladder."""

    def command(**flags: Any) -> None:
        config, plain = read_configuration(flags)
        federation = read_federation(flags, plain)
        over, up = flags.pop("over") or (), flags.pop("ladder")
        files = SweepFiles(flags.pop("curves"), flags.pop("table"), bool(flags.pop("relative")))
        metric = metric_of(audit, flags.pop("metric"))
        output = settle(OutputSettings, flags, plain)
        sweep = (
            _up_the_ladder(audit, over, flags, plain, federation)
            if up
            else _over_a_grid(audit, over, flags, plain, federation)
        )
        axes = sweep.axes
        expect_writable(output, config, plain, flags, [axis.values for axis in axes])
        files.expect()
        with unfinished(output) as units:
            report = _swept(sweep, units, quiet=output.quiet)
            show(report, output)
            if output.shape == "table":
                print_sweep(report, metric, {axis.name: axis for axis in axes}, Stdout())
            if not incomplete(report):
                files.write(report, metric)
            units.forget()
        require_complete(report)

    of_sweep = [option for option in _OWN if option.name not in audit.Options.model_fields]
    return with_options(command, [*of_sweep, *_parameters(audit)])


@dataclass(frozen=True)
class _Sweep:
    """A sweep: the settings that vary, and the run at each of them."""

    axes: tuple[Axis, ...]
    runs: tuple[tuple[Variant, RunSettings, Audit[Any]], ...]


def _over_a_grid(
    audit: type[Audit[Any]],
    over: Sequence[str],
    flags: dict[str, Any],
    plain: dict[str, Any],
    federation: Deployment | None,
) -> _Sweep:
    axes, fields = read_axes(over), _fields(audit)
    expect_known(axes, fields, flags)
    file = plain if federation is None else deployed(plain, federation)
    grid = [(p.variant, *_configured(audit, p.filled(flags, fields), file)) for p in points(axes)]
    return _Sweep(axes, tuple(grid))


def _up_the_ladder(
    audit: type[Audit[Any]],
    over: Sequence[str],
    flags: dict[str, Any],
    plain: dict[str, Any],
    federation: Deployment | None,
) -> _Sweep:
    if federation is None:
        raise UsageError("--ladder: describe your federation with --deployment FILE")
    if over:
        raise UsageError("--over: the ladder has its own rungs; give either --ladder or --over")

    def configured(names: Sequence[str]) -> tuple[RunSettings, BaseModel]:
        settings, run = _configured(audit, flags, deployed(plain, federation, names))
        return settings, run.options

    values = {**federation.of_subject(), **audit.Options.deployed(federation)}
    rungs = ladder(values, configured)
    axis = Axis(RUNG, tuple(rung.title for rung in rungs))
    runs = ((rung.title, *rung.run) for rung in rungs)
    return _Sweep((axis,), tuple(({RUNG: title}, s, audit(options)) for title, s, options in runs))


def _fields(audit: type[Audit[Any]]) -> set[str]:
    """Every field that a sweep may vary: options of the audit, and settings of its subject."""
    of_subject = (audit.renames.get(name, name) for name in SubjectSettings.model_fields)
    return {*audit.Options.model_fields, *of_subject}


def _swept(sweep: _Sweep, units: "Units", *, quiet: bool) -> Report:
    """Merges the reports of all settings into one."""
    done = []
    loaded, subject = None, None
    with stdout_for_the_report():
        for _, settings, run_audit in sweep.runs:
            if subject is None or settings != loaded:
                loaded, subject = settings, deferred.opening.load(settings)
            done.append(
                deferred.runner.run(subject, [run_audit], progress=watcher(quiet), units=units)
            )
    parts = [
        AuditRows(run_audit, report.measurements, variant)
        for (variant, _, run_audit), report in zip(sweep.runs, done, strict=True)
    ]
    return done[0].model_copy(
        update={
            "measurements": merge(parts),
            "provenance": {
                **done[0].provenance,
                "finished": done[-1].provenance["finished"],
                **asked(),
                "defenses": _defenses(done),
                "sweep": {axis.name: list(axis.values) for axis in sweep.axes},
            },
        }
    )


def _defenses(reports: Sequence[Report]) -> JsonValue:
    """The defenses of all settings; where they differ, one text that names each chain."""
    chains = [report.provenance.get("defenses", []) for report in reports]
    texts = dict.fromkeys(
        " then ".join(map(str, chain)) if isinstance(chain, list) else "" for chain in chains
    )
    return chains[0] if len(texts) == 1 else [" or ".join(text or "nothing" for text in texts)]


def _configured(
    audit: type[Audit[Any]], flags: Mapping[str, Any], file: dict[str, Any]
) -> tuple[RunSettings, Audit[Any]]:
    """Builds the run's settings and the audit from flags, checked before anything runs."""
    of_run, given = _dealt(audit, flags)
    options = _settled(audit, given, file)
    return settle(RunSettings, of_run, file), audit(options)


def _dealt(
    audit: type[Audit[Any]], flags: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the given flags by field name into those of the run and those of the audit."""
    original = {renamed: name for name, renamed in audit.renames.items()}
    given = {name: value for name, value in flags.items() if value is not None}
    own = {name: given.pop(name) for name in audit.Options.model_fields if name in given}
    of_run = {original.get(name, name): value for name, value in given.items()}
    return _shaped(BudgetSettings, of_run), _shaped(audit.Options, own)


def _settled(audit: type[Audit[Any]], given: dict[str, Any], file: dict[str, Any]) -> BaseModel:
    return settle(audit.Options, given, section(file, audit.name))


def _shaped(model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Turns a single text for a field of several values into a list of that one value."""
    return {
        name: (value,)
        if isinstance(value, str) and get_origin(model.model_fields[name].annotation) is tuple
        else value
        for name, value in values.items()
    }


def print_sweep(report: Report, metric: str, names: Mapping[str, object], console: Console) -> None:
    """Print a metric at every setting of the sweep; rows of further variants are left out."""
    rows = {
        (row.layer, variant_text(row.variant)): row
        for row in report.select(metric)
        if row.variant.keys() == names.keys()
    }
    if not rows:
        return
    page, layers = Page(console), list(dict.fromkeys(layer for layer, _ in rows))
    columns = [
        Column(
            page.safe(setting).replace(", ", "\n"),
            [page.text(cell_text(rows.get((layer, setting)), SKIPPED)) for layer in layers],
        )
        for setting in dict.fromkeys(setting for _, setting in rows)
    ]
    key = Column(page.safe(metric), [page.text(layer or WHOLE_MODEL) for layer in layers])
    page.print([page.text("")])
    page.print(grid([key], columns, page.width, page.rule))
    if any(row.doubts for row in rows.values()):
        page.print(page.prose(DOUBTS))
