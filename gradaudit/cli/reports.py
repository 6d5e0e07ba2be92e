"""Arguments and options that the commands on finished reports share."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from gradaudit.files import expect_other_files
from gradaudit.formats import Format, format_for
from gradaudit.formats.base import Stdout, write_out
from gradaudit.text import printable

ReportFile = Annotated[
    Path, typer.Argument(help="A JSON report, as `gradaudit scan -o report.json` writes it.")
]
Output = Annotated[
    list[Path] | None,
    typer.Option("-o", "--output", help="Write to this file too; the suffix is the format."),
]
MOST_CHARACTERS = 2000

_SHAPE = typer.Option("-f", "--format", help="Format on standard output.")
Shape = Annotated[Literal["table", "json", "markdown"], _SHAPE]
OptionalShape = Annotated[Literal["table", "json", "markdown"] | None, _SHAPE]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No remarks on standard error.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show tracebacks.")]


def writers(
    paths: Sequence[Path] | None, reads: Sequence[Path | None] = ()
) -> list[tuple[Path, Format]]:
    """The files to write with their formats, checked before anything is written.

    Args:
        paths: of the files to write.
        reads: of those that the command reads.

    Raises:
        UsageError: no format has a file's suffix, or a file is both written and read.
    """
    expect_other_files(paths or (), reads)
    return [(path, format_for(path)) for path in paths or ()]


def stdout() -> Console:
    """Standard output as it is now."""
    return Stdout()


def print_json(value: object) -> None:
    """A document on standard output, byte-clean."""
    write_out(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def remark(text: str, quiet: bool) -> None:
    """A line on standard error."""
    if not quiet:
        typer.echo(f"gradaudit: {printable(text, limit=MOST_CHARACTERS)}", err=True)
