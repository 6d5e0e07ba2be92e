"""The changes between two reports, for a terminal and as Markdown."""

from collections.abc import Sequence

from rich.console import Console

from gradaudit.comparison import Change, side
from gradaudit.formats.layout import Column, grid
from gradaudit.formats.markdown import code, table
from gradaudit.formats.page import Page
from gradaudit.wording import DOUBTS, variant_text

HEADINGS = ("metric", "old", "new", "change", "intervals")
WHOLE_MODEL = "(whole model)"


def print_changes(changed: Sequence[Change], unchanged: int, console: Console) -> None:
    """Print a line for each row that changed, and how many did not."""
    page = Page(console)
    if changed:
        cells = [[page.text(cell) for cell in _cells(change)] for change in changed]
        names = [page.text(change.row.layer or WHOLE_MODEL) for change in changed]
        others = [Column(h, [row[i] for row in cells]) for i, h in enumerate(HEADINGS)]
        page.print(grid(Column("layer", names), others, page.width, page.rule))
    page.print(page.prose(tally(changed, unchanged)))


def markdown_changes(changed: Sequence[Change], unchanged: int) -> str:
    """The same as Markdown."""
    rows = [
        [code(change.row.layer or WHOLE_MODEL), code(metric), *rest]
        for change in changed
        for metric, *rest in [_cells(change)]
    ]
    lines = [*table(["layer", *HEADINGS], rows), ""] if rows else []
    return "\n".join([*lines, tally(changed, unchanged)]) + "\n"


def tally(changed: Sequence[Change], unchanged: int) -> str:
    """How many rows changed, and of how many the intervals lie apart."""
    apart = sum(change.overlap is False for change in changed)
    told = f"{len(changed)} rows changed ({apart} beyond their intervals), {unchanged} did not"
    doubts = any(row.doubts for change in changed for row in (change.old, change.new) if row)
    return f"{told}; {DOUBTS}" if doubts else told


def _cells(change: Change) -> tuple[str, ...]:
    variant = f" ({variant_text(change.row.variant)})" if change.row.variant else ""
    overlap = {True: "overlap", False: "apart", None: ""}[change.overlap]
    return (
        change.row.id + variant,
        side(change.old),
        side(change.new),
        change.words,
        overlap,
    )
