"""``gradaudit history`` follows the layers of reports over rounds or versions."""

from pathlib import Path
from typing import Annotated

import typer

from gradaudit.cli.reports import All, Verbose
from gradaudit.core.files import write_atomically
from gradaudit.errors import UsageError
from gradaudit.evidence.changes import MOST_ROWS
from gradaudit.evidence.history import read_history
from gradaudit.formats.base import Stdout
from gradaudit.formats.page import Page
from gradaudit.sweeping.sweep_table import write_table


def history(
    folder: Annotated[
        Path, typer.Argument(help="Folder with JSON reports, one a round or version.")
    ],
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="Metric to follow (default: all that answer a question)."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "-o", "--output", help="File to write: .html with pictures, or .csv with every row."
        ),
    ] = None,
    every: All = False,
    verbose: Verbose = False,
) -> None:
    """Follow leakage by layer over rounds or versions, and flag what the intervals show.

    gradaudit history reports
    gradaudit history reports -o history.html -o history.csv

    The reports are taken in the order of the numbers in their names. A change is flagged where the
    interval lies beyond that of the last report flagged, or of the first; ten are shown.
    """
    for path in output or ():
        if path.suffix.lower() not in (".html", ".csv"):
            raise UsageError(f"{path}: a history is written as .html or .csv")
    found = read_history(folder, metric)
    for path in output or ():
        if path.suffix.lower() == ".csv":
            write_table(path, found.merged(), found.metrics[0])
        else:
            write_atomically(path, found.page())
    shown = found.turns if every else found.turns[:MOST_ROWS]
    page = Page(Stdout())
    page.print(page.prose(found.summary))
    for turn in shown:
        page.print(page.prose(str(turn), rest="  "))
    if left := len(found.turns) - len(shown):
        page.print(page.prose(f"{left} more changes (--all shows them)"))
