"""Prints ``--help`` with options under headings, and examples that can be pasted."""

import textwrap
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, get_type_hints

from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo

EXAMPLE = "gradaudit "
FIRST = ("model", "checkpoint", "data", "attribute", "out", "policy", "baseline", "quick", "output")
"""Options that help shows first, in this order."""
NEEDED_FIRST = "Needed first"
_AS_IT_IS = "\b\n"
"""Mark before a paragraph that click must not wrap, as it would break names at hyphens."""


class HelpCommand(TyperCommand):
    """A command whose help lists the options under headings, those needed first at the top."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for argument in self.params:
            if isinstance(argument, TyperArgument) and not argument.help:
                argument.help = _help_of_argument(self, str(argument.name))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, and the commands of a group, each under its heading."""
        sections = defaultdict(list)
        for heading, name, text in (*_options(self, ctx), *_commands(self)):
            lines = _wrapped(text.replace("\\[", "["), 50)  # Typer escapes for rich in any case
            sections[heading].append((name, _AS_IT_IS + "\n".join(lines)))
        for heading, entries in sections.items():
            with formatter.section(heading):
                formatter.write_dl(entries, col_max=24)


class HelpGroup(TyperGroup):
    """A group of commands whose help lists them under headings too."""

    format_options = HelpCommand.format_options


def examples_in(text: str) -> list[str]:
    """Returns the lines of a help text that are command lines."""
    return [line.strip() for line in text.splitlines() if line.strip().startswith(EXAMPLE)]


def with_examples(text: str) -> str:
    """Returns the help text with each example on lines of its own, and long ones continued."""
    for line in examples_in(text):
        text = text.replace(line, " \\\n    ".join(_wrapped(line, 72)))
    return text.replace(f"\n\n{EXAMPLE}", f"\n\n{_AS_IT_IS}{EXAMPLE}")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _options(command: Any, ctx: Any) -> Iterator[tuple[str, str, str]]:
    """Yields heading, flags and help of each option, arguments first."""
    order = {name: place for place, name in enumerate(FIRST)}
    options = sorted(command.get_params(ctx), key=lambda each: order.get(each.name, len(order)))
    for option in sorted(options, key=lambda each: str(each.param_type_name)):
        panel = getattr(option, "rich_help_panel", None) or f"{option.param_type_name}s".title()
        if entry := option.get_help_record(ctx):
            yield NEEDED_FIRST if option.name in order else panel, *entry


def _help_of_argument(command: Any, name: str) -> str | None:
    """The help that the command declares for an argument, which Typer 0.20 loses on click 8.5."""
    hint = get_type_hints(command.callback, include_extras=True).get(name)
    said = [info.help for info in getattr(hint, "__metadata__", ()) if type(info) is ArgumentInfo]
    return said[0] if said else None


def _commands(group: Any) -> Iterator[tuple[str, str, str]]:
    """Yields heading, name and summary of each command of a group."""
    listed = {n: c for n, c in getattr(group, "commands", {}).items() if not c.hidden}
    for name, command in listed.items():
        summary = (command.help or "").split("\n\n")[0]
        yield command.rich_help_panel or "Commands", name, summary
