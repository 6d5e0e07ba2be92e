"""The commands ``compare`` and ``render`` on finished reports, and options they share."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from gradaudit.config import STDOUT, Shape, shape_of
from gradaudit.files import expect_other_files
from gradaudit.formats import Format, format_for, format_named
from gradaudit.formats.base import Stdout, write_out
from gradaudit.formats.changes import changes, markdown_changes, print_changes, sorted_changes
from gradaudit.judging import differences
from gradaudit.redaction import redact
from gradaudit.report import Report
from gradaudit.text import inert_json, printable

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


def compare(
    old: Annotated[Path, typer.Argument(help="Earlier JSON report; - is standard input.")],
    new: Annotated[Path, typer.Argument(help="Later JSON report; - is standard input.")],
    variants: Annotated[
        bool,
        typer.Option(
            "--variants", help="Compare rows that have a variant too, not only headlines."
        ),
    ] = False,
    shape: Annotated[Literal["table", "json", "markdown"], _SHAPE] = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show what changed between two reports, per layer and metric, the largest change first.

    gradaudit compare old.json new.json
    gradaudit compare old.json new.json --variants -f markdown

    Each change says whether the intervals overlap. The command exits with 0 whatever changed: to
    fail on worse numbers, use `gradaudit gate NEW --baseline OLD`.
    """
    before, after = Report.from_file(old), Report.from_file(new)
    for note in differences(after, before):
        remark(f"{old} {note}", quiet)
    every = list(changes(before, after, variants=variants))
    changed = sorted_changes(change for change in every if not change.same)
    if shape == "json":
        print_json([change.to_json() for change in every])
    elif shape == "markdown":
        write_out(markdown_changes(changed, len(every) - len(changed)))
    else:
        print_changes(changed, len(every) - len(changed), Stdout())


Redact = Annotated[
    bool,
    typer.Option(
        "--redact", help="Replace attribute values, column names and paths by placeholders."
    ),
]


All = Annotated[
    bool,
    typer.Option("--all", help="Show every finding, layer and metric in the table."),
]


def render(
    report: ReportFile,
    output: Output = None,
    shape: OptionalShape = None,
    every: All = False,
    redacted: Redact = False,
    verbose: Verbose = False,
) -> None:
    """Show a saved report, or write it in other formats.

    gradaudit render report.json --all
    gradaudit render report.json -o report.html -o report.md

    Prints the table unless files are asked for; with -f it prints in any case.
    """
    files = writers(output, (report,))
    saved = Report.from_file(report)
    saved = redact(saved) if redacted else saved
    for path, format_ in files:
        format_.write(saved, path)
    if shape or not files or STDOUT in (output or ()):
        format_named(shape_of(shape, output), every=every).show(saved)
