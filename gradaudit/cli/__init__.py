"""The command line: parse, call, render, exit. Torch is imported by the commands that need it."""

import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated

import typer

import gradaudit
from gradaudit.audits import audits
from gradaudit.cli.audit import audit_command
from gradaudit.cli.compare import compare
from gradaudit.cli.gate import gate
from gradaudit.cli.guard import guarded, say
from gradaudit.cli.listing import list_parts
from gradaudit.cli.render import render
from gradaudit.cli.scan import scan
from gradaudit.cli.schema import schema
from gradaudit.cli.train import train
from gradaudit.errors import GradauditError

PANEL = "Single audits"
GROUPS = {"attack": "What a real attacker gets from a shared gradient."}
"""Help of the commands that have commands."""

_REPORTS: dict[str, Callable[..., None]] = {
    "gate": gate,
    "compare": compare,
    "render": render,
    "list": list_parts,
    "schema": schema,
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradaudit {gradaudit.__version__}")
        raise typer.Exit


def _root(
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


@cache
def build() -> typer.Typer:
    """The whole command line, with a command for each installed audit.

    Raises:
        UsageError: an installed audit cannot be loaded, or two have one name.
    """
    app = typer.Typer(
        name="gradaudit",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.command("scan")(guarded(scan))
    app.command("train")(guarded(train))
    _add_audits(app)
    for name, command in _REPORTS.items():
        app.command(name, rich_help_panel="Reports")(guarded(command))
    return app


def _add_audits(app: typer.Typer) -> None:
    """A command for each audit; one named with two words is a command of a command."""
    groups: dict[str, typer.Typer] = {}
    for name, audit in audits().items():
        group, _, word = name.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(no_args_is_help=True)
            app.add_typer(groups[group], name=group, help=GROUPS.get(group), rich_help_panel=PANEL)
        panel = None if group else PANEL
        groups.get(group, app).command(word, help=audit.summary, rich_help_panel=panel)(
            guarded(audit_command(audit))
        )


def main() -> None:
    """Run the command line."""
    try:
        app = build()
    except GradauditError as error:
        say(str(error))
        sys.exit(error.exit_status)
    app()
