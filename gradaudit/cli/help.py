"""Help by Typer's panels: the first options of a command by ``--help``, all by ``--help-all``."""

import re
import textwrap
from collections.abc import Sequence
from typing import Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.models import ArgumentInfo

from gradaudit.core.text import printable

EXAMPLE = "gradaudit "
FIRST = (
    "help", "help-all", "model", "checkpoint", "data", "attribute", "out", "policy", "baseline",
    "quick", "output",
)  # fmt: skip
"""Options that help always shows."""
SHARED = ("Subject", "Output")
"""Panels of the options that commands share, shown if the command's own leave room."""
MOST_OPTIONS = 15
"""Largest number of options that ``--help`` shows."""
_HELP_ALL = "gradaudit.help_all"
_CLAUSE = re.compile(r"[,;:(]|\n|\.(?:\s|$)")
_TAG = re.compile(r"(\[[a-z#/@][^\[]*?\])")


class HelpCommand(TyperCommand):
    """A command whose ``--help`` shows at most ``MOST_OPTIONS`` options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for argument in self.params:
            if isinstance(argument, TyperArgument) and not argument.help:
                argument.help = _help_of_argument(self, str(argument.name))
            if choices := getattr(argument.type, "choices", None):
                argument.metavar = "CHOICE"  # as the column of types would leave no room for help
                argument.help = f"{argument.help} One of {', '.join(choices)}."
        self.params.append(
            TyperOption(
                param_decls=["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_help_all,
                help="Show every option and exit.",
            )
        )

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, without the options beyond the first ones."""
        later = () if _HELP_ALL in ctx.meta else _later(self.get_params(ctx))
        negations = [(option, option.secondary_opts) for option in self.params]
        for option in self.params:
            option.hidden, option.secondary_opts = option.hidden or option in later, []  # type: ignore[attr-defined]
        self.rich_markup_mode = "rich"  # of help alone: an error stays one line
        super().format_help(ctx, formatter)
        for option, names in negations:
            option.secondary_opts = names
            option.hidden = option.hidden and option not in later  # type: ignore[attr-defined]
        if later:
            typer.echo(f" {len(later)} more options: {ctx.command_path} --help-all")


class HelpGroup(TyperGroup):
    """A group of commands that lists one line for each, and proposes similar names once."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, with the first clause of each command's summary."""
        for command in self.commands.values():
            command.short_help = _CLAUSE.split(command.help or "")[0]
        self.rich_markup_mode = "rich"
        super().format_help(ctx, formatter)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line and exit; a wrong one is named in one line."""
        try:
            status = super().main(*args, **{**extra, "standalone_mode": False})
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()  # type: ignore[attr-defined]
            else:
                typer.echo(_wrong_usage(error), err=True)
            raise SystemExit(error.exit_code) from None  # type: ignore[attr-defined]
        raise SystemExit(status or 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; some versions of click repeat Typer's proposal of similar names."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if getattr(error, "possibilities", None) and "Did you mean" in str(error):
                error.possibilities = None  # type: ignore[attr-defined]
            raise


def _wrong_usage(error: Any) -> str:
    """Word what is wrong with a command line, and where help is."""
    command = error.ctx.command_path if getattr(error, "ctx", None) else "gradaudit"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{command}: {printable(message, limit=2000)} ({command} --help)"


def _help_all(ctx: Any, _: object, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_HELP_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def _later(params: Sequence[Any]) -> list[Any]:
    """Return the options beyond the first ``MOST_OPTIONS``; a command's own come before shared."""

    def rank(option: Any) -> int:
        needed = max(option.opts, key=len).removeprefix("--") in FIRST
        return 0 if needed else 1 + (getattr(option, "rich_help_panel", None) in SHARED)

    options = [each for each in params if each.param_type_name == "option" and not each.hidden]
    return sorted(options, key=rank)[MOST_OPTIONS:]


def escaped(text: str) -> str:
    """Return a help text in which brackets are no markup of rich."""
    return _TAG.sub(r"\\\1", text)


def examples_in(text: str) -> list[str]:
    """Return the lines of a help text that are command lines."""
    return [line.strip() for line in text.splitlines() if line.strip().startswith(EXAMPLE)]


def with_examples(text: str) -> str:
    """Return the help text with examples on lines of their own and other paragraphs as one line."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        examples = lines and lines[0].startswith(EXAMPLE)
        paragraphs.append("\n".join(map(_continued, lines)) if examples else " ".join(lines))
    return escaped("\n\n".join(paragraphs))


def _continued(line: str) -> str:
    wrapped = textwrap.wrap(line, 70, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(wrapped)


def _help_of_argument(command: Any, name: str) -> str | None:
    """Return the declared help of an argument, which Typer 0.20 loses on click 8.5."""
    hint = get_type_hints(command.callback, include_extras=True).get(name)
    helps = [info.help for info in getattr(hint, "__metadata__", ()) if type(info) is ArgumentInfo]
    return escaped(helps[0]) if helps and helps[0] else None
