"""Help with options under headings and examples that can be pasted, and the shell's completion.

bash cuts words at colons, which specs are full of: its words are put together before they are
completed, and what it has of them already is cut off the answers. Names of parts are read from
their source, so that the shell waits for no import of torch.
"""

import io
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.models import ArgumentInfo

from gradaudit.audits import audits
from gradaudit.audits.explaining import names
from gradaudit.core.parts import declared, summaries
from gradaudit.core.text import printable
from gradaudit.errors import GradauditError
from gradaudit.judging import known_metrics
from gradaudit.measurement import dict_of
from gradaudit.report import Report
from gradaudit.zoo import zoo_names

EXAMPLE = "gradaudit "
FIRST = ("model", "checkpoint", "data", "attribute", "out", "policy", "baseline", "quick", "output")
"""Options that help shows first, in this order."""
COMMON = (
    "help", "help-all", "dry-run", "budget", "config", "format", "defense", "layer", "samples",
    "seed", "batch-size", "update",
)  # fmt: skip
"""Options that help shows of every command that has them, before the command's own options."""
SHARED = ("Subject", "Output")
"""Headings of the options that commands share, which help shows after the command's own ones."""
MOST_OPTIONS = 25
"""Largest number of options that ``--help`` shows; ``--help-all`` shows all."""
NEEDED_FIRST = "Needed first"
_AS_IT_IS = "\b\n"
"""Mark before a paragraph that click must not wrap, as it would break names at hyphens."""


class HelpCommand(TyperCommand):
    """A command whose help lists the options under headings, those needed first at the top.

    ``--help`` shows at most ``MOST_OPTIONS``: those needed first, those common to all commands, and
    of the rest the first ones as the command declares them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for argument in self.params:
            if isinstance(argument, TyperArgument) and not argument.help:
                argument.help = _help_of_argument(self, str(argument.name))
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

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Write nothing, as ``format_options`` lists the arguments too."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, and the commands of a group, each under its heading."""
        sections = defaultdict(list)
        shown, left_out = _chosen(self.get_params(ctx), every=_HELP_ALL in ctx.meta)
        for heading, name, text in (*_options(shown, ctx), *_commands(self)):
            lines = _wrapped(text.replace("\\[", "["), 50)  # Typer escapes for rich in any case
            sections[heading].append((name, _AS_IT_IS + "\n".join(lines)))
        for heading, entries in sections.items():
            with formatter.section(heading):
                formatter.write_dl(entries, col_max=24)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more options: {ctx.command_path} --help-all")


class HelpGroup(TyperGroup):
    """A group of commands whose help lists them under headings too."""

    format_options = HelpCommand.format_options

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command; for an unknown one, similar names are proposed once.

        Some versions of click propose them behind those that Typer has put into the message.
        """
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if getattr(error, "possibilities", None) and "Did you mean" in str(error):
                error.possibilities = None  # type: ignore[attr-defined]
            raise


_HELP_ALL = "gradaudit.help_all"
"""Key of a command's context under which it is noted that every option is shown."""


def _help_all(ctx: Any, _: object, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_HELP_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def _chosen(params: Sequence[Any], *, every: bool) -> tuple[list[Any], int]:
    """Returns the parameters that help shows, in their order, and how many it leaves out."""
    first = {f"--{name}": place for place, name in enumerate((*FIRST, *COMMON))}

    def rank(option: Any) -> int:
        later = getattr(option, "rich_help_panel", None) in SHARED
        return first.get(max(option.opts, key=len), len(first) + later)

    options = [each for each in params if each.param_type_name == "option" and not each.hidden]
    ranked = sorted(options, key=rank)
    left_out = [] if every else ranked[MOST_OPTIONS:]
    return [each for each in params if each not in left_out], len(left_out)


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


def _options(params: Sequence[Any], ctx: Any) -> Iterator[tuple[str, str, str]]:
    """Yields heading, flags and help of each parameter, arguments first.

    The flag that turns an option off is left out; the help names it where it does something.
    """
    order = {name: place for place, name in enumerate(FIRST)}
    options = sorted(params, key=lambda each: order.get(each.name, len(order)))
    for option in sorted(options, key=lambda each: str(each.param_type_name)):
        kind = str(option.param_type_name)
        panel = getattr(option, "rich_help_panel", None) or f"{kind}s".title()
        if entry := option.get_help_record(ctx):
            needed = kind == "option" and option.name in order
            flags = entry[0].partition(" / --no-")[0]
            yield NEEDED_FIRST if needed else panel, flags, entry[1]


def _help_of_argument(command: Any, name: str) -> str | None:
    """The help that the command declares for an argument, which Typer 0.20 loses on click 8.5."""
    hint = get_type_hints(command.callback, include_extras=True).get(name)
    helps = [info.help for info in getattr(hint, "__metadata__", ()) if type(info) is ArgumentInfo]
    return helps[0] if helps else None


def _commands(group: Any) -> Iterator[tuple[str, str, str]]:
    listed = {n: c for n, c in getattr(group, "commands", {}).items() if not c.hidden}
    for name, command in listed.items():
        summary = (command.help or "").split("\n\n")[0]
        yield command.rich_help_panel or "Commands", name, summary


Completion = tuple[str, str]
"""A completed word and its explanation."""
REPORT = Path("report.json")
"""Report whose layers are offered where the command line names none."""
_LONGEST_HEADER = 1 << 16
"""Most characters of a table's first line that are read."""


def completer(option: str) -> Callable[[typer.Context, str], list[Completion]] | None:
    """Returns the completer of an option or argument by its name; None where there is none."""
    if option not in _COMPLETED:
        return None

    def complete(ctx: typer.Context, incomplete: str) -> list[Completion]:
        candidates = _COMPLETED[option](ctx)
        return [(word, summary) for word, summary in candidates if word.startswith(incomplete)]

    return complete


def _models(ctx: typer.Context) -> Iterator[Completion]:
    yield from ((f"zoo:{name}", summary) for name, summary in zoo_names().items())
    yield "torchvision:", "an architecture of torchvision"


def _data(ctx: typer.Context) -> Iterator[Completion]:
    for example, summary in summaries("gradaudit.data", by="example").items():
        adapter = re.match(r"[\w-]+(?::|$)", example)
        if adapter:  # the others begin with a path
            yield adapter[0], summary


def _audits(ctx: typer.Context) -> Iterator[Completion]:
    return ((name.replace(" ", "-"), audit.summary) for name, audit in audits().items())


def _explained(ctx: typer.Context) -> Iterator[Completion]:
    titles = {name: metric.title for name, metric in known_metrics().items()}
    summary_of = {**{name: audit.summary for name, audit in audits().items()}, **titles}
    return ((name.replace(" ", "-"), summary_of.get(name, "")) for name in names())


def _parts(package: str, by: str = "name") -> Callable[[typer.Context], Iterable[Completion]]:
    return lambda ctx: summaries(package, by).items()


def _losses(ctx: typer.Context) -> Iterator[Completion]:
    return (
        (name, str(loss["summary"])) for name, loss in declared("gradaudit.models.losses").items()
    )


def _layers(ctx: typer.Context) -> Iterator[Completion]:
    for report in _reports(ctx):
        yield from ((printable(layer.name), layer.kind) for layer in report.target.layers)


def _attributes(ctx: typer.Context) -> Iterator[Completion]:
    for report in _reports(ctx):
        yield from ((printable(name), "") for name in dict_of(report.data.get("attributes")))
    data = str(ctx.params.get("data") or "")
    yield from ((name, "") for name in dict.fromkeys((*_bundled(data), *_header(data))))


def _bundled(data: str) -> list[str]:
    """Returns the attributes of data that comes with gradaudit, as its summary names them."""
    summary = summaries("gradaudit.data").get(data.partition("?")[0], "")
    found = re.search(r"attributes? ([\w ]+)$", summary)
    return found[1].split(" and ") if found else []


def _header(data: str) -> list[str]:
    """Returns the columns in the first line of the CSV file that a spec names."""
    kind, _, rest = data.partition(":")
    if kind != "csv":
        return []
    with suppress(OSError, ValueError), Path(rest.partition("?")[0]).expanduser().open() as file:
        line = file.readline(_LONGEST_HEADER).rstrip("\r\n")
        return [printable(name.strip('"')) for name in line.split(max(",;\t", key=line.count))]
    return []


def _reports(ctx: typer.Context) -> Iterator[Report]:
    """Returns the first readable report: one on the command line, or ``report.json``."""
    given = [ctx.params.get("report"), *(ctx.params.get("output") or ()), REPORT]
    for path in given:
        if path is not None and Path(path).suffix == ".json" and Path(path).is_file():
            try:
                yield Report.from_file(path)
            except GradauditError:  # another file of this name
                continue
            return


@contextmanager
def whole_words(environment: MutableMapping[str, str], shell: str) -> Iterator[None]:
    """Give completers whole words instead of bash's pieces, and cut their answers to fit bash.

    Args:
        environment: with ``COMP_WORDS``, one a line, and ``COMP_CWORD``, as bash sets them.
        shell: what asks, as Typer calls it; nothing is changed for others than bash.
    """
    if shell != "complete_bash":
        yield
        return
    pieces = environment.get("COMP_WORDS", "").split("\n")
    words = _joined(pieces[: int(environment.get("COMP_CWORD", "0")) + 1])
    environment["COMP_WORDS"] = "\n".join(words)
    environment["COMP_CWORD"] = str(len(words) - 1)
    known, colon, _ = words[-1].rpartition(":")
    answers = io.StringIO()
    try:
        with redirect_stdout(answers):
            yield
    finally:
        lines = answers.getvalue().splitlines(keepends=True)
        sys.stdout.write("".join(line.removeprefix(known + colon) for line in lines))


def _joined(pieces: Sequence[str]) -> list[str]:
    """Joins the pieces of a word that bash cut at colons: ``zoo``, ``:``, ``le`` to ``zoo:le``."""
    words: list[str] = []
    for piece in pieces:
        if words and (piece == ":" or words[-1].endswith(":")):
            words[-1] += piece
        else:
            words.append(piece)
    return words


_RECONSTRUCTIONS = "gradaudit.attacks.reconstruction"
_COMPLETED: Mapping[str, Callable[[typer.Context], Iterable[Completion]]] = {
    "model": _models,
    "data": _data,
    "attribute": _attributes,
    "audits": _audits,
    "explained": _explained,
    "layer": _layers,
    "hide": _layers,
    "loss": _losses,
    "defense": _parts("gradaudit.defenses", "example"),
    "method": _parts(_RECONSTRUCTIONS),
    "family": _parts("gradaudit.families"),
    "algorithm": _parts("gradaudit.federation.algorithms"),
}
