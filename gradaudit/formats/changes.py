"""Changes between two reports, row by row; for a terminal and as Markdown."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from rich.console import Console

from gradaudit.formats.markdown import code, table
from gradaudit.formats.page import GAP, Column, Page, grid
from gradaudit.report import Measurement, Report, Variant, marked
from gradaudit.text import DOUBTED, DOUBTS, number, variant_text

ABSENT = "absent"


@dataclass(frozen=True)
class Change:
    """A row in two reports; None where a report does not have it."""

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
        """The new value less the old one; None where not both are finite numbers."""
        before = self.old.value if self.old else None
        after = self.new.value if self.new else None
        return None if before is None or after is None else after - before

    @property
    def share(self) -> float | None:
        """The difference as a share of the old value; infinite where that alone is zero."""
        before = self.old.value if self.old else None
        if self.difference is None or before is None:
            return None
        if not self.difference:
            return 0.0
        return self.difference / abs(before) if before else math.copysign(math.inf, self.difference)

    @property
    def widths(self) -> float | None:
        """The difference in half the widths of both intervals; None where not both have one."""
        if self.overlap is None or self.difference is None:
            return None
        ends = [row.interval for row in (self.old, self.new) if row and row.interval]
        half = sum(high - low for low, high in ends) / 2
        return self.difference / half if half else math.copysign(math.inf, self.difference)

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
        """Formats the difference: ``+0.500 (+25.0 %)``; empty where there is none."""
        if self.difference is None or self.share is None:
            return ""
        share = f" ({_signed(100 * self.share)} %)" if math.isfinite(self.share) else ""
        return f"{_signed(self.difference)}{share}"

    def to_json(self) -> dict[str, JsonValue]:
        """Returns the key, both values with their status, the difference and the overlap."""
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
    """Yields the rows of both reports: in the new one's order, then those of the old one alone."""
    before = {row.key: row for row in old.rows if variants or not row.variant}
    for row in new.rows:
        if variants or not row.variant:
            yield Change(before.pop(row.key, None), row)
    for row in before.values():
        yield Change(row, None)


def side(row: Measurement | None) -> str:
    """Formats one side of a change as a cell: the estimate, a status, or ``absent``."""
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


HEADINGS = ("layer", "metric", "old → new", "change", "intervals")
WHOLE_MODEL = "(whole model)"


def sorted_changes(changed: Iterable[Change]) -> list[Change]:
    """Returns the changes, the largest first: in widths of intervals, then in old values.

    Rows that one of the reports does not have, or did not measure, come last.
    """
    return sorted(changed, key=_size, reverse=True)


def _size(change: Change) -> tuple[bool, bool, bool, float]:
    widths, share = change.widths, change.share
    size = share if widths is None else widths
    return change.overlap is False, widths is not None, share is not None, abs(size or 0.0)


def print_changes(changed: Sequence[Change], unchanged: int, console: Console) -> None:
    """Print a line for each row that changed, and how many did not.

    With the intervals where the console is wide enough for them.
    """
    page = Page(console)
    if changed:
        columns = _columns(page, changed, _sides)
        if sum(column.width + GAP for column in columns) > page.width + GAP:
            columns = _columns(page, changed, _values)
        page.print(grid(columns[:2], columns[2:], page.width, page.rule))
    page.print(page.prose(tally(changed, unchanged)))


def markdown_changes(changed: Sequence[Change], unchanged: int) -> str:
    """Returns the changes as Markdown."""
    rows = [
        [code(layer), code(metric), *rest]
        for change in changed
        for layer, metric, *rest in [_cells(change, _sides(change))]
    ]
    lines = [*table(HEADINGS, rows), ""] if rows else []
    return "\n".join([*lines, tally(changed, unchanged)]) + "\n"


def tally(changed: Sequence[Change], unchanged: int) -> str:
    """Counts the rows that changed, and those whose intervals do not overlap."""
    apart = sum(change.overlap is False for change in changed)
    summary = f"{len(changed)} rows changed ({apart} beyond their intervals), {unchanged} did not"
    doubts = any(row.doubts for change in changed for row in (change.old, change.new) if row)
    return f"{summary}; {DOUBTS}" if doubts else summary


def _columns(page: Page, changed: Sequence[Change], sides: Callable[[Change], str]) -> list[Column]:
    lines = [[page.text(cell) for cell in _cells(change, sides(change))] for change in changed]
    return [Column(page.safe(h), [line[i] for line in lines]) for i, h in enumerate(HEADINGS)]


def _cells(change: Change, sides: str) -> tuple[str, ...]:
    variant = f" ({variant_text(change.row.variant)})" if change.row.variant else ""
    overlap = {True: "overlap", False: "apart", None: ""}[change.overlap]
    layer = change.row.layer or WHOLE_MODEL
    return (layer, change.row.id + variant, sides, change.words, overlap)


def _sides(change: Change) -> str:
    return f"{side(change.old)} → {side(change.new)}"


def _values(change: Change) -> str:
    return f"{_value(change.old)} → {_value(change.new)}"


def _value(row: Measurement | None) -> str:
    """Formats one side without its interval."""
    if row is None or row.number is None:
        return side(row)
    return number(row.number) + (f" {DOUBTED}" if row.doubts else "")
