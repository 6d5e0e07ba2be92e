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
from gradaudit.cli.guard import FAILED, guarded, say
from gradaudit.cli.listing import list_parts
from gradaudit.cli.render import render
from gradaudit.cli.scan import scan
from gradaudit.cli.schema import schema
from gradaudit.cli.sweep import sweep_command
from gradaudit.cli.train import train
from gradaudit.errors import GradauditError, one_line

PANEL = "Single audits"
GROUPS = {
    "attack": "What a real attacker gets from a shared gradient.",
    "sweep": "One audit over a grid of settings, in one report, with curves.",
}
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
    """A command for each audit, and one that sweeps it; of two words, a command of a command."""
    groups: dict[str, typer.Typer] = {"": app}
    for name, audit in audits().items():
        _add(groups, name, audit_command(audit), audit.summary)
        _add(groups, f"sweep {name}", sweep_command(audit), audit.summary)


def _add(
    groups: dict[str, typer.Typer], name: str, command: Callable[..., None], summary: str
) -> None:
    group, _, word = name.rpartition(" ")
    _group(groups, group).command(word, help=summary, rich_help_panel=None if group else PANEL)(
        guarded(command)
    )


def _group(groups: dict[str, typer.Typer], name: str) -> typer.Typer:
    """The group of commands of this name, made with those above it where it is new."""
    if name not in groups:
        above, _, word = name.rpartition(" ")
        groups[name] = typer.Typer(no_args_is_help=True)
        _group(groups, above).add_typer(
            groups[name], name=word, help=GROUPS.get(word), rich_help_panel=None if above else PANEL
        )
    return groups[name]


def main() -> None:
    """Run the command line; a status of 1 only ever comes from a command that chose it."""
    try:
        build()()
    except GradauditError as error:
        say(str(error))
        sys.exit(error.exit_status)
    except Exception as error:
        say(f"unexpected {one_line(error)}")
        sys.exit(FAILED)
