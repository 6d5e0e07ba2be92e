"""The command line: parse, call, render, exit. Torch is imported by the commands that need it."""

from collections.abc import Callable
from typing import Annotated

import typer

import gradaudit
from gradaudit.audits import audits
from gradaudit.cli.audit import audit_command
from gradaudit.cli.compare import compare
from gradaudit.cli.gate import gate
from gradaudit.cli.guard import guarded
from gradaudit.cli.listing import list_parts
from gradaudit.cli.render import render
from gradaudit.cli.scan import scan
from gradaudit.cli.schema import schema

app = typer.Typer(
    name="gradaudit",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradaudit {gradaudit.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Measure, layer by layer and with error bars, what a shared gradient gives away."""


app.command("scan")(guarded(scan))
for _name, _audit in audits().items():
    app.command(_name, help=_audit.summary, rich_help_panel="Single audits")(
        guarded(audit_command(_audit))
    )
_REPORTS: dict[str, Callable[..., None]] = {
    "gate": gate,
    "compare": compare,
    "render": render,
    "list": list_parts,
    "schema": schema,
}
for _name, _command in _REPORTS.items():
    app.command(_name, rich_help_panel="Reports")(guarded(_command))


def main() -> None:
    """Run the command line."""
    app()
