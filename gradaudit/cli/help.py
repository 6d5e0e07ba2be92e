"""``--help``: two examples and what is needed first, then every option; no word is ever cut."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from gradaudit.formats.base import Stdout
from gradaudit.formats.page import Page

EXAMPLE = "gradaudit "
FIRST = ("model", "checkpoint", "data", "attribute", "out", "policy", "baseline", "quick", "output")
"""Options that a user needs before all others, in this order."""
NEEDED_FIRST = "Needed first"
ARGUMENTS, OPTIONS, COMMANDS = "Arguments", "Options", "Commands"
WIDEST_TERM = 24
MOST_WIDTH = 100

_BEFORE_OPTION = re.compile(r" (?=-)")
_NAME = re.compile(r"\{(\w+)\}")

Entry = tuple[str, str]


class HelpCommand(TyperCommand):
    """A command whose help is written here."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print it; nothing is left for the formatter."""
        _print(self, ctx, _options(self, ctx))


class HelpGroup(TyperGroup):
    """A command of commands whose help is written here."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print it; nothing is left for the formatter."""
        _print(self, ctx, {**_options(self, ctx), **_commands(self, ctx)})


def examples_in(text: str) -> list[str]:
    """The lines of a help text that are command lines."""
    return [line.strip() for line in text.splitlines() if line.strip().startswith(EXAMPLE)]


def _print(command: Any, ctx: Any, sections: Mapping[str, Sequence[Entry]]) -> None:
    page = Page(Stdout())
    page.width = min(page.width, MOST_WIDTH)
    page.print(_lines(page, command, ctx, sections))


def _lines(
    page: Page, command: Any, ctx: Any, sections: Mapping[str, Sequence[Entry]]
) -> Iterator[Text]:
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    usage = _NAME.sub(lambda match: match[1].upper(), usage)
    yield page.text(f"Usage: {usage}", "bold")
    text = command.help or ""
    examples = examples_in(text)
    if examples:
        yield Text()
        for line in examples:
            yield from _shell_lines(page, line)
    for paragraph in _paragraphs(text):
        yield Text()
        yield from page.prose(paragraph)
    for heading, entries in sections.items():
        if entries:
            yield Text()
            yield page.text(heading, "bold")
            yield from _entries(page, entries)


def _shell_lines(page: Page, line: str) -> Iterator[Text]:
    """A command line, over several lines before its options where it is too long for one."""
    begun = "  "
    for part in _BEFORE_OPTION.split(line):
        if len(begun) + len(part) + 3 > page.width and begun.strip():
            yield page.text(f"{begun} \\")
            begun = "     "
        begun += f" {part}" if begun.strip() else part
    yield page.text(begun)


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs without the command lines, each on one line."""
    for paragraph in text.split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines() if not examples_in(line)]
        if lines:
            yield " ".join(lines)


def _entries(page: Page, entries: Sequence[Entry]) -> Iterator[Text]:
    """Terms with what they mean, which hangs beside them or, of long ones, begins below."""
    width = max((len(term) for term, _ in entries if len(term) <= WIDEST_TERM), default=8)
    indent = " " * (width + 4)
    for term, meaning in entries:
        beside = len(term) <= width and bool(meaning)
        if not beside:
            yield page.text(f"  {term}", "bold cyan")
        first = f"  {term:<{width}}  " if beside else indent
        for i, line in enumerate(page.prose(meaning, first, indent)):
            if beside and i == 0:
                line.stylize("bold cyan", 0, len(first))
            yield line


def _options(command: Any, ctx: Any) -> dict[str, list[Entry]]:
    """The options by their panels, behind the arguments and what is needed first."""
    sections: dict[str, list[Entry]] = {ARGUMENTS: [], NEEDED_FIRST: []}
    shown = [
        parameter
        for parameter in command.get_params(ctx)
        if not getattr(parameter, "hidden", False)
    ]
    named = {parameter.name: parameter for parameter in shown}
    first = [named[name] for name in FIRST if name in named and _is_option(named[name])]
    sections[NEEDED_FIRST] = [_entry(parameter) for parameter in first]
    for parameter in shown:
        panel = _panel(parameter, OPTIONS) if _is_option(parameter) else ARGUMENTS
        if parameter not in first:
            sections.setdefault(panel, []).append(_entry(parameter))
    return sections


def _is_option(parameter: Any) -> bool:
    return any(name.startswith("-") for name in parameter.opts)


def _entry(parameter: Any) -> Entry:
    """``-m, --model MODEL`` and what it means; an argument is called by its name."""
    text = " ".join((parameter.help or "").split())
    if not _is_option(parameter):
        return str(parameter.name).upper(), text
    names = sorted(parameter.opts, key=len)
    flags = ", ".join(names) + "".join(f"/{name}" for name in parameter.secondary_opts)
    return f"{flags} {_value(parameter)}".rstrip(), text


def _value(parameter: Any) -> str:
    """What stands behind an option: its choices, or its name in capitals."""
    if parameter.is_flag:
        return ""
    choices = getattr(getattr(parameter, "type", None), "choices", None) or _choices(
        getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    )
    return "|".join(choices) or str(parameter.name).upper()


def _choices(annotation: Any) -> list[str]:
    """The values of a ``Literal``, also of one among other types.

    Newer versions of typer say by an annotation what older ones said by a type of choices.
    """
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [choice for kind in get_args(annotation) for choice in _choices(kind)]


def _commands(group: Any, ctx: Any) -> dict[str, list[Entry]]:
    sections: dict[str, list[Entry]] = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        summary = (command.help or "").split("\n\n")[0]
        sections.setdefault(_panel(command, COMMANDS), []).append((name, " ".join(summary.split())))
    return sections


def _panel(part: Any, otherwise: str) -> str:
    panel = getattr(part, "rich_help_panel", None)
    return panel if isinstance(panel, str) else otherwise
