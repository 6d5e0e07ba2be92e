"""``gradaudit compare``: what changed from one report to another."""

from pathlib import Path
from typing import Annotated

import typer

from gradaudit.cli.reports import Quiet, Shape, Verbose, print_json, remark, stdout
from gradaudit.comparison import changes
from gradaudit.formats.base import write_out
from gradaudit.formats.changes import markdown_changes, print_changes
from gradaudit.judging import differences
from gradaudit.report import Report


def compare(
    old: Annotated[Path, typer.Argument(help="The earlier JSON report.")],
    new: Annotated[Path, typer.Argument(help="The later JSON report.")],
    variants: Annotated[
        bool, typer.Option("--variants", help="Compare rows with a variant too.")
    ] = False,
    shape: Shape = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show what changed between two reports, per layer and metric.

    Says of each change whether the intervals overlap. Exits with 0 whatever changed: to fail on
    worse numbers, use `gradaudit gate NEW --baseline OLD`.
    """
    before, after = Report.from_file(old), Report.from_file(new)
    for note in differences(after, before):
        remark(f"{old} {note}", quiet)
    every = list(changes(before, after, variants=variants))
    changed = [change for change in every if not change.same]
    if shape == "json":
        print_json([change.to_json() for change in every])
    elif shape == "markdown":
        write_out(markdown_changes(changed, len(every) - len(changed)))
    else:
        print_changes(changed, len(every) - len(changed), stdout())
