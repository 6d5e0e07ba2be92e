"""The commands ``compare`` and ``render`` on finished reports, and options they share."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gradaudit.audits import Audit, audits
from gradaudit.core.drawing import expect_picture
from gradaudit.core.files import expect_other_files
from gradaudit.core.specs import suggest
from gradaudit.core.text import inert_json, markdown_escape, printable
from gradaudit.errors import UsageError
from gradaudit.evidence.changes import (
    MOST_ROWS,
    changes,
    markdown_changes,
    outcomes,
    print_changes,
    sorted_changes,
)
from gradaudit.evidence.redaction import redact
from gradaudit.evidence.trends import Trend, markdown_trends, print_trends, trends
from gradaudit.formats import Format, format_for, format_named
from gradaudit.formats.base import Stdout, write_out
from gradaudit.judging import known_metrics
from gradaudit.presentation import STDOUT, Shape, shape_of
from gradaudit.report import Report
from gradaudit.sweeping.sweep_table import expect_table, write_table

ReportFile = Annotated[
    Path,
    typer.Argument(
        help="JSON report, as `gradaudit scan -o report.json` writes it; - is standard input."
    ),
]
Output = Annotated[
    list[Path] | None,
    typer.Option(
        "-o",
        "--output",
        help="File to write to; its suffix names the format, and - is standard output, as JSON.",
    ),
]
MOST_CHARACTERS = 2000

_SHAPE = typer.Option("-f", "--format", help="Format of what is printed on standard output.")
OptionalShape = Annotated[Shape | None, _SHAPE]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print no remarks on standard error.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show tracebacks and warnings.")]


CURVES = "SVG, PNG or PDF file for a picture of the metric: a panel for each layer."
TABLE = (
    "File for the sweep's rows: tidy rows as .csv, or the metric as a table (.md); repeat it "
    "for several."
)
RELATIVE = "Draw the layers along x, relative to the largest value of each setting."
METRIC = "The metric that is drawn, and written as a table (default: the headline)."


@dataclass(frozen=True)
class SweepFiles:
    """The picture and the tables that are made of a sweep, where they are asked for."""

    curves: Path | None = None
    tables: Sequence[Path] = ()
    relative: bool = False

    def expect(self) -> None:
        """Check before the work that all can be written.

        Raises:
            UsageError: a suffix or a folder is wrong.
        """
        if self.curves is not None:
            expect_picture(self.curves)
        for table in self.tables:
            expect_table(table)

    def write(self, report: Report, metric: str) -> None:
        """Write them.

        Raises:
            UsageError: the report is not of a sweep, or the metric was not measured.
        """
        from gradaudit.sweeping.curves import draw_sweep

        if self.curves is not None:
            known = known_metrics().get(metric)
            chance = known.chance if known else None
            draw_sweep(self.curves, report, metric, relative=self.relative, chance=chance)
        for table in self.tables:
            write_table(table, report, metric)


def metric_of(audit: type[Audit[Any]], asked: str | None) -> str:
    """Returns the id of the metric of an audit that is asked for, or of its headline.

    Raises:
        UsageError: the audit has no such metric.
    """
    known = [metric.id for metric in audit.metrics]
    chosen = (asked or [*audit.headline, *known][0]).removeprefix(f"{audit.reports_as()}.")
    if chosen not in known:
        raise UsageError(
            f"--metric {asked}: {audit.name} has no such metric{suggest(chosen, known)}; "
            f"it has: {', '.join(known)}"
        )
    return f"{audit.reports_as()}.{chosen}"


def _swept_audit(report: Report) -> type[Audit[Any]]:
    known = audits()
    found = [known[name] for name in report.options if name in known]
    if not found:
        raise UsageError("the report names no audit that is installed here")
    return found[0]


def writers(
    paths: Sequence[Path] | None, reads: Sequence[Path | None] = ()
) -> list[tuple[Path, Format]]:
    """Returns the files to write with their formats, checked before anything is written.

    Raises:
        UsageError: no format has a file's suffix, or a file is both written and read.
    """
    files = [path for path in paths or () if path != STDOUT]
    expect_other_files(files, reads)
    return [(path, format_for(path)) for path in files]


def print_json(value: object) -> None:
    """Print a document as JSON on standard output."""
    write_out(inert_json(json.dumps(value, indent=2, ensure_ascii=False) + "\n"))


def remark(text: str, quiet: bool) -> None:
    """Print a line on standard error, unless quiet."""
    if not quiet:
        typer.echo(f"gradaudit: {printable(text, limit=MOST_CHARACTERS)}", err=True)


All = Annotated[
    bool,
    typer.Option("--all", help="Show every row of the table."),
]


def compare(
    reports: Annotated[
        list[Path],
        typer.Argument(help="Two or more JSON reports, oldest first; - is standard input."),
    ],
    variants: Annotated[
        bool,
        typer.Option(
            "--variants", help="Compare rows that have a variant too, not only headlines."
        ),
    ] = False,
    every_row: All = False,
    shape: Annotated[Literal["table", "json", "markdown"], _SHAPE] = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare the rows and verdicts of reports.

    gradaudit compare old.json report.json new.json
    gradaudit compare old.json new.json --variants -f markdown

    The verdicts come first, then other defenses, hidden layers or plans, and the findings that
    came, went or changed severity, with their layers. Ten rows are shown, those that
    crossed a limit first. A row is worse or better where its intervals do not overlap. Of more than
    two reports each row has its trend: a change counts from the last report that changed, so that
    slow drift is seen. JSON has every row. The command exits
    with 0 whatever changed: to fail on worse numbers, use `gradaudit gate NEW --baseline OLD`.
    """
    if len(reports) < 2:
        raise UsageError(f"{reports[0]}: is one report; name a later one too")
    read = [Report.from_file(path) for path in reports]
    lines = [printable(line, limit=None) for line in outcomes(list(map(str, reports)), read)]
    if shape == "json":
        for line in lines:
            remark(line.strip(), quiet)
    elif shape == "markdown":
        write_out("".join(f"- {markdown_escape(line.strip())}\n" for line in lines) + "\n")
    else:
        write_out("".join(f"{line}\n" for line in lines) + "\n")
    if len(read) > 2:
        _show_trends(
            list(map(str, reports)), list(trends(read, variants=variants)), shape, every_row
        )
        return
    every = list(changes(*read, variants=variants))
    changed = sorted_changes(change for change in every if change.shown)
    most = len(changed) if every_row else MOST_ROWS
    if shape == "json":
        print_json([change.to_json() for change in every])
    elif shape == "markdown":
        write_out(markdown_changes(changed, len(every) - len(changed), most))
    else:
        print_changes(changed, len(every) - len(changed), Stdout(), most)


def _show_trends(names: Sequence[str], found: Sequence[Trend], shape: str, every_row: bool) -> None:
    most = None if every_row else MOST_ROWS
    if shape == "json":
        print_json({"reports": list(names), "rows": [trend.to_json() for trend in found]})
    elif shape == "markdown":
        write_out(markdown_trends(names, found, most))
    else:
        print_trends(names, found, Stdout(), most)


Redact = Annotated[
    bool,
    typer.Option(
        "--redact", help="Replace attribute values, column names and paths by placeholders."
    ),
]


def render(
    report: ReportFile,
    output: Output = None,
    shape: OptionalShape = None,
    every: All = False,
    redacted: Redact = False,
    curves: Annotated[Path | None, typer.Option(help=f"Of a sweep: {CURVES}")] = None,
    table: Annotated[list[Path] | None, typer.Option(help=f"Of a sweep: {TABLE}")] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help=f"With --curves: {RELATIVE}")
    ] = False,
    metric: Annotated[str | None, typer.Option(help=f"Of a sweep: {METRIC}")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show a saved report or write it in other formats.

    gradaudit render report.json -o report.html -o report.md
    gradaudit render sweep.json --curves curves.svg --table sweep.csv

    Prints the table unless files are asked for; with -f it prints in any case.
    """
    files, of_sweep = writers(output, (report,)), SweepFiles(curves, table or (), relative)
    of_sweep.expect()
    saved = Report.from_file(report)
    saved = redact(saved) if redacted else saved
    drawn = curves is not None or bool(table)
    if drawn:
        of_sweep.write(saved, metric_of(_swept_audit(saved), metric))
    for path, format_ in files:
        format_.write(saved, path)
    if shape or not (files or drawn) or STDOUT in (output or ()):
        format_named(shape_of(shape, output), every=every).show(saved)
