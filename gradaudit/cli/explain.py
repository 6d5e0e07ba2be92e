"""``gradaudit explain``: an audit's or a metric's question, equation, source and limits."""

from typing import Annotated, Literal

import typer

from gradaudit.cli.completion import completer
from gradaudit.explaining import explain as explained
from gradaudit.formats.base import Stdout, write_out
from gradaudit.formats.explanation import explanation_lines, explanation_markdown
from gradaudit.formats.page import Page


def explain(
    name: Annotated[
        list[str],
        typer.Argument(
            help="Name of an audit or a metric, as in `attack property` or vinfo.auroc.",
            autocompletion=completer("explained"),
        ),
    ],
    shape: Annotated[
        Literal["table", "markdown"],
        typer.Option("-f", "--format", help="Format of what is printed."),
    ] = "table",
) -> None:
    """Explain an audit or a metric: its question, equation, source and limits.

    gradaudit explain sensitivity
    gradaudit explain vinfo.auroc
    """
    explanation = explained(" ".join(name))
    if shape == "markdown":
        write_out(explanation_markdown(explanation))
    else:
        page = Page(Stdout())
        page.print(explanation_lines(explanation, page))
