"""``gradaudit list``: what there is to choose from, found in the packages themselves."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import typer

from gradaudit.audits import audits
from gradaudit.cli.reports import print_json, stdout
from gradaudit.errors import UsageError
from gradaudit.formats import formats
from gradaudit.formats.page import Page
from gradaudit.judging import known_metrics
from gradaudit.parts import declared, summaries
from gradaudit.zoo import zoo_names


def _metrics() -> dict[str, str]:
    return {
        name: " ".join([metric.title, *([f"({metric.unit})"] if metric.unit else [])])
        for name, metric in known_metrics().items()
    }


def _losses() -> dict[str, str]:
    return {name: loss["summary"] for name, loss in declared("gradaudit.models.losses").items()}


KINDS: dict[str, Callable[[], Mapping[str, str]]] = {
    "audits": lambda: {name: audit.summary for name, audit in audits().items()},
    "metrics": _metrics,
    "zoo": zoo_names,
    "data": lambda: summaries("gradaudit.data", by="example"),
    "losses": _losses,
    "reconstructions": lambda: summaries("gradaudit.attacks.reconstruction"),
    "families": lambda: summaries("gradaudit.families"),
    "defenses": lambda: summaries("gradaudit.defenses", by="example"),
    "mechanisms": lambda: summaries("gradaudit.dp.mechanisms"),
    "algorithms": lambda: summaries("gradaudit.federation.algorithms"),
    "formats": lambda: {f"{f.name} ({f.suffix})": f.summary for f in formats().values()},
}


def list_parts(
    kind: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(KINDS)}; all of them without it.")
    ] = None,
    shape: Annotated[
        Literal["table", "json"], typer.Option("-f", "--format", help="Format.")
    ] = "table",
) -> None:
    """List what is available: audits, metrics, models, data, losses, defenses and so on."""
    if kind is not None and kind not in KINDS:
        raise UsageError(f"list {kind}: nothing of this kind; there are: {', '.join(KINDS)}")
    found = {name: KINDS[name]() for name in ([kind] if kind else KINDS)}
    if shape == "json":
        print_json(found)
        return
    page = Page(stdout())
    for name, parts in found.items():
        width = max(map(len, parts), default=0)
        lines = [f"  {part:<{width}}  {summary}".rstrip() for part, summary in parts.items()]
        page.print(map(page.text, [f"{name}:", *lines]))
