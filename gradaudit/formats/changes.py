"""What changed between two reports, row by row; for a terminal and as Markdown."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from rich.console import Console

from gradaudit.formats.markdown import code, table
from gradaudit.formats.page import Column, Page, grid
from gradaudit.report import Measurement, Report, Variant
from gradaudit.text import DOUBTS, marked, number, variant_text

ABSENT = "absent"


@dataclass(frozen=True)
class Change:
    """One row in two reports; None where a report does not have it."""

    old: Measurement | None
    new: Measurement | None

    @property
    def row(self) -> Measurement:
        """The row that names metric, layer and variant."""
        row = self.new or self.old
        assert row is not None, "a change has a row on at least one side"
        return row

    @property
    def difference(self) -> float | None:
        """New less old; None where not both are finite numbers."""
        before = self.old.value if self.old else None
        after = self.new.value if self.new else None
        return None if before is None or after is None else after - before

    @property
    def overlap(self) -> bool | None:
        """Whether the intervals overlap; None where not both have one.

        Intervals that do not overlap differ surely; those that do may still differ.
        """
        old, new = self.old and self.old.interval, self.new and self.new.interval
        if not old or not new:
            return None
        return old[0] <= new[1] and new[0] <= old[1]

    @property
    def same(self) -> bool:
        """Whether both reports say the same of the row."""
        return (
            self.old is not None
            and self.new is not None
            and (self.old.status, self.old.number, self.old.interval)
            == (self.new.status, self.new.number, self.new.interval)
        )

    @property
    def words(self) -> str:
        """The difference in words: ``+0.500 (+25.0 %)``; empty where there is none to tell."""
        if self.difference is None:
            return ""
        before = self.old.value if self.old else None
        share = f" ({_signed(100 * self.difference / abs(before))} %)" if before else ""
        return f"{_signed(self.difference)}{share}"

    def to_json(self) -> dict[str, JsonValue]:
        """Key, both values with their status, difference, overlap."""
        variant: Variant = self.row.variant
        return {
            "audit": self.row.audit,
            "metric": self.row.metric,
            "layer": self.row.layer,
            "variant": dict(variant),
            "old": _side(self.old),
            "new": _side(self.new),
            "difference": self.difference,
            "intervals_overlap": self.overlap,
        }


def changes(old: Report, new: Report, *, variants: bool = False) -> Iterator[Change]:
    """Every row of either report, in the new one's order, then those that only the old one has."""
    before = {row.key: row for row in old.measurements if variants or not row.variant}
    for row in new.measurements:
        if variants or not row.variant:
            yield Change(before.pop(row.key, None), row)
    for row in before.values():
        yield Change(row, None)


def side(row: Measurement | None) -> str:
    """One side of a change as a cell: the estimate, a status, or ``absent``."""
    if row is None:
        return ABSENT
    return marked(row) if row.status == "measured" else row.status


def _signed(value: float) -> str:
    return number(value) if value < 0 else f"+{number(value)}"


def _side(row: Measurement | None) -> JsonValue:
    if row is None:
        return None
    infinite: dict[str, JsonValue] = {"infinite": True} if row.number == math.inf else {}
    interval: JsonValue = list(row.interval) if row.interval else None
    return {"status": row.status, "value": row.value, "interval": interval, **infinite}


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
    return (change.row.id + variant, side(change.old), side(change.new), change.words, overlap)
