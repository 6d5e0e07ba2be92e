"""``gradaudit render``: a saved report in another format."""

from typing import Annotated

import typer

from gradaudit.cli.reports import OptionalShape, Output, ReportFile, Verbose, writers
from gradaudit.formats import format_named
from gradaudit.redaction import redact
from gradaudit.report import Report

Redact = Annotated[
    bool,
    typer.Option("--redact", help="Put placeholders for attribute values, column names and paths."),
]


def render(
    report: ReportFile,
    output: Output = None,
    shape: OptionalShape = None,
    redacted: Redact = False,
    verbose: Verbose = False,
) -> None:
    """Show a saved report, or write it in other formats.

    Prints the table unless files are asked for; with -f it prints in any case.
    """
    files = writers(output, (report,))
    saved = Report.from_file(report)
    saved = redact(saved) if redacted else saved
    for path, format_ in files:
        format_.write(saved, path)
    if shape or not files:
        format_named(shape or "table").show(saved)
