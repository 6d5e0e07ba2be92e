"""The ``sweep`` command of an audit, made from its class: over a grid of settings, or a ladder."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import JsonValue
from rich.console import Console

from gradaudit.audits import Audit
from gradaudit.audits.gathering import AuditRows, incomplete, merge
from gradaudit.audits.presets import Preset
from gradaudit.cli.audit import dealt, parameters, presets_within
from gradaudit.cli.flags import parameter, read_configuration, read_federation, with_options
from gradaudit.cli.perform import (
    asked,
    conclude,
    expect_writable,
    show,
    stdout_for_the_report,
    time_left,
    write,
)
from gradaudit.cli.reports import CURVES, METRIC, RELATIVE, TABLE, SweepFiles, metric_of
from gradaudit.cli.scanning import Left, about, judged_by
from gradaudit.cli.terminal import watcher
from gradaudit.config import BudgetSettings, RunSettings, SubjectSettings, deployed, settle
from gradaudit.core.text import DOUBTS, printable, variant_text
from gradaudit.deployment import Deployment
from gradaudit.errors import UsageError
from gradaudit.executors.stopping import Stopped, reporting
from gradaudit.formats.base import Stdout
from gradaudit.formats.page import Column, Page, grid
from gradaudit.report import Report, Variant
from gradaudit.sweeping.grid import NAME as RUNG
from gradaudit.sweeping.grid import Axis, expect_known, ladder, points, read_axes
from gradaudit.view.cells import SKIPPED, cell_text

if TYPE_CHECKING:
    from gradaudit.progress import Progress
    from gradaudit.subject import Subject

WHOLE_MODEL = "(whole model)"
_OF_COMMAND = BudgetSettings.model_fields.keys() - SubjectSettings.model_fields
"""Settings of a command that no setting of a sweep varies."""


def _option(name: str, kind: Any, text: str) -> inspect.Parameter:
    option = typer.Option(f"--{name}", help=text, rich_help_panel="Sweep", show_default=False)
    return parameter(name, kind, option)


_OWN = [
    _option(
        "over",
        list[str] | None,
        "What is varied, NAME=V1,V2,… (or V1|V2|… where values hold commas): an option of the "
        "audit or the subject, or a NAME that other options hold as {NAME}; repeat for a grid.",
    ),
    _option(
        "ladder",
        bool,
        "Climb from the attacker's best case to the federation of --deployment, one change a rung.",
    ),
    _option("curves", Path | None, CURVES),
    _option("table", list[Path] | None, TABLE),
    _option("relative", bool, RELATIVE),
    _option("metric", str | None, METRIC),
]


def sweep_command(audit: type[Audit[Any]]) -> Callable[..., None]:
    """Make the ``sweep`` command of this audit, over a grid or up the ladder."""

    def command(**flags: Any) -> None:
        config, plain = read_configuration(flags)
        federation = read_federation(flags, plain)
        over, up = flags.pop("over") or (), flags.pop("ladder")
        curves, tables, relative = (flags.pop(name) for name in ("curves", "table", "relative"))
        files = SweepFiles(curves, tables or (), bool(relative))
        metric = metric_of(audit, flags.pop("metric"))
        output = settle(BudgetSettings, {n: flags.get(n) for n in _OF_COMMAND}, plain)
        sweep = (_up_the_ladder if up else _over_a_grid)(audit, over, flags, plain, federation)
        axes, seconds = sweep.axes, output.seconds
        left = time_left(seconds) if seconds else None
        expect_writable(output, config, plain, flags, [axis.values for axis in axes])
        files.expect()
        if output.dry_run:
            _print_sweep_plan(sweep.within(seconds))
            return
        report, stopped = _swept(sweep.within(seconds), left, watcher(output.quiet))
        unwritten = write(report, output)
        show(report, output)
        if output.shape == "table":
            print_sweep(report, metric, {axis.name: axis for axis in axes}, Stdout())
        if not incomplete(report):
            files.write(report, metric)
        if stopped:
            raise stopped
        conclude(report, output, unwritten=unwritten)

    of_sweep = [option for option in _OWN if option.name not in audit.Options.model_fields]
    return with_options(command, [*of_sweep, *parameters(audit)])


@dataclass(frozen=True)
class _Sweep:
    """A sweep: the settings that vary, and the run at each of them."""

    axes: tuple[Axis, ...]
    runs: tuple[tuple[Variant, RunSettings, tuple[Preset, ...]], ...]

    def opened(self) -> Iterator[tuple[Variant, Subject, tuple[Preset, ...]]]:
        """Yields each setting with its subject, which is opened anew only where it differs."""
        from gradaudit.run.opening import load

        loaded, subject = None, None
        for variant, settings, sizes in self.runs:
            if subject is None or settings != loaded:
                loaded, subject = settings, load(settings)
            yield variant, subject, sizes

    def within(self, seconds: float | None) -> _Sweep:
        """Returns the sweep with one preset at every setting: the largest that fits the time.

        The presets are the same, so that settings differ in nothing but what varies.
        """
        if seconds is None:
            return self
        from gradaudit.run.scan_plan import CORES, RATE, work_of

        with stdout_for_the_report():
            works = [[work_of(x, each) for each in presets] for _, x, presets in self.opened()]
        most = CORES * RATE * seconds
        smaller = range(max(map(len, works)))
        fits = (k for k in smaller if sum(w[max(0, len(w) - 1 - k)] for w in works) <= most)
        fewer = next(fits, smaller[-1])
        runs = (
            (variant, settings, (presets[max(0, len(presets) - 1 - fewer)],))
            for variant, settings, presets in self.runs
        )
        return _Sweep(self.axes, tuple(runs))


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
    runs: dict[tuple[str, ...], tuple[RunSettings, tuple[Preset, ...]]] = {}

    def configured(names: tuple[str, ...]) -> tuple[RunSettings, tuple[Any, ...]]:
        """What is run, in a form in which equal runs are equal."""
        file = deployed(plain, federation, names)
        settings, presets = runs[names] = _configured(audit, flags, file)
        return settings, tuple((x.name, x.audit.options, x.samples, x.layers) for x in presets)

    values = {**federation.of_subject(), **audit.Options.deployed(federation)}
    rungs = ladder(values, configured)
    axis = Axis(RUNG, tuple(rung.title for rung in rungs))
    return _Sweep((axis,), tuple(({RUNG: rung.title}, *runs[rung.names]) for rung in rungs))


def _fields(audit: type[Audit[Any]]) -> set[str]:
    """Every field that a sweep may vary: options of the audit, and settings of its subject."""
    of_subject = (audit.renames.get(name, name) for name in SubjectSettings.model_fields)
    return {*audit.Options.model_fields, *of_subject}


def _print_sweep_plan(sweep: _Sweep) -> None:
    """Print every setting's preset, and one estimate of all."""
    from gradaudit.run.scan_plan import work_of

    total = 0.0
    with stdout_for_the_report():
        lines = []
        for variant, subject, (*_, preset) in sweep.opened():
            work = work_of(subject, preset)
            total += work
            name = f"{preset.audit.name}: {preset.name if work else 'nothing to do'}"
            lines.append(f"{variant_text(variant)}: {name}")
    for line in (*lines, f"together: {about(total)}"):
        typer.echo(printable(line, limit=None))


def _swept(
    sweep: _Sweep, left: Left | None, progress: Progress
) -> tuple[Report, BaseException | None]:
    """Run the settings; what interrupts a later one is returned with the report of those before.

    Raises:
        KeyboardInterrupt, Stopped: the command was interrupted before a setting was done.
    """
    done, parts, count = list[Report](), list[AuditRows](), len(sweep.runs)
    stopped: BaseException | None = None
    with stdout_for_the_report(), progress.task("sweep, settings", count) as advance:
        try:
            with reporting():
                for number, (variant, subject, (*_, preset)) in enumerate(sweep.opened(), 1):
                    named = f"setting {number} of {count} ({variant_text(variant)})"
                    with progress.task(named, 1):
                        report = _at_setting(subject, preset, left, progress)
                    done.append(report)
                    parts.append(AuditRows(preset.audit, report.measurements, variant))
                    advance(1)
        except (KeyboardInterrupt, Stopped) as stop:
            if not done:
                raise
            stopped = stop
    return _merged(sweep, done, parts, interrupted=stopped is not None), stopped


def _merged(
    sweep: _Sweep, done: Sequence[Report], parts: Sequence[AuditRows], *, interrupted: bool
) -> Report:
    """Merge the reports of the finished settings."""
    plan: dict[str, JsonValue] = {"plan": {"interrupted": True}} if interrupted else {}
    return done[0].model_copy(
        update={
            "measurements": merge(parts),
            "provenance": {
                **done[0].provenance,
                **plan,
                "finished": done[-1].provenance["finished"],
                **asked(),
                "defenses": _defenses(done),
                "sweep": {axis.name: list(axis.values) for axis in sweep.axes},
            },
        }
    )


def _at_setting(subject: Subject, preset: Preset, left: Left | None, progress: Progress) -> Report:
    """Runs the audit at one setting; of a sweep with a time budget as long as that lasts.

    Raises:
        Stopped: the command was interrupted.
    """
    from gradaudit.run.runner import run
    from gradaudit.run.survey import Survey

    if left is None:
        return run(subject, [preset.audit], progress=progress)
    judged = judged_by(None)
    done = Survey(subject, [[preset]], math.inf, judged, left, share=1.0)
    done.go(progress)
    if done.stopped:
        raise done.stopped
    return done.report({})


def _defenses(reports: Sequence[Report]) -> JsonValue:
    """The defenses of all settings; where they differ, one text that names each chain."""
    chains = [report.provenance.get("defenses", []) for report in reports]
    texts = dict.fromkeys(
        " then ".join(map(str, chain)) if isinstance(chain, list) else "" for chain in chains
    )
    return chains[0] if len(texts) == 1 else [" or ".join(text or "nothing" for text in texts)]


def _configured(
    audit: type[Audit[Any]], flags: Mapping[str, Any], file: dict[str, Any]
) -> tuple[RunSettings, tuple[Preset, ...]]:
    """Builds the run's settings and the audit's presets, checked before anything runs."""
    of_run, given = dealt(audit, flags)
    settings = settle(BudgetSettings, of_run, file)
    presets = presets_within(audit, given, file, within=settings.seconds)
    return settle(RunSettings, of_run, file), presets


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
