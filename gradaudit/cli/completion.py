"""Shell completion of options: names of parts, and names from a report.

bash cuts words at colons, which specs are full of: its words are put together before they are
completed, and what it has of them already is cut off the answers.

Names of parts are read from their source, so that the shell waits for no import of torch.
"""

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import typer

from gradaudit.audits import audits
from gradaudit.errors import GradauditError
from gradaudit.explaining import names
from gradaudit.judging import known_metrics
from gradaudit.parts import declared, summaries
from gradaudit.report import Report
from gradaudit.text import printable
from gradaudit.zoo import zoo_names

Completion = tuple[str, str]
"""A completed word and its explanation."""
REPORT = Path("report.json")
"""Report whose layers are offered where the command line names none."""


def completer(option: str) -> Callable[[typer.Context, str], list[Completion]] | None:
    """Returns the completer of an option or argument by its name; None where there is none."""
    if option not in _COMPLETED:
        return None

    def complete(ctx: typer.Context, incomplete: str) -> list[Completion]:
        candidates = _COMPLETED[option](ctx)
        return [(word, said) for word, said in candidates if word.startswith(incomplete)]

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
    said = {**{name: audit.summary for name, audit in audits().items()}, **titles}
    return ((name.replace(" ", "-"), said[name]) for name in names())


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
        attributes = report.data.get("attributes")
        yield from (
            (printable(name), "") for name in (attributes if isinstance(attributes, dict) else ())
        )


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
    "executor": _parts("gradaudit.executors", "example"),
}
