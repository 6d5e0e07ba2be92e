"""Trends of each layer's rows over several reports, oldest first; for a terminal and as Markdown.

A turn is a row that lies beyond the last one that turned, or beyond the first, so that a slow drift
is one too. Two intervals at 95 % lie apart by luck in 0.56 % of comparisons (2Φ(−1.96 √2)).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import JsonValue
from rich.console import Console

from gradaudit.core.text import markdown_code, markdown_table, variant_text
from gradaudit.evidence.changes import (
    LEFT_OUT,
    MOST_ROWS,
    WHOLE_MODEL,
    Change,
    crossings,
    side,
    side_json,
)
from gradaudit.formats.page import Column, Page, grid
from gradaudit.report import Measurement, Report

BY_LUCK = 0.0056
"""Share of comparisons without a change in which two intervals at 95 % lie apart."""
HEADINGS = ("layer", "metric", "values", "trend")


@dataclass(frozen=True)
class Turn:
    """A change that is shown between two reports, by their numbers from 1."""

    before: int
    after: int
    direction: str


@dataclass(frozen=True)
class Trend:
    """A row in every report; None where a report does not have it.

    ``crossed`` says which limit the newest row is beyond or within, where the oldest was not.
    """

    rows: Sequence[Measurement | None]
    crossed: str = ""

    @property
    def row(self) -> Measurement:
        """The newest row, which names metric, layer and variant."""
        return next(row for row in reversed(self.rows) if row is not None)

    @cached_property
    def turns(self) -> list[Turn]:
        """The changes for the worse or the better, oldest first."""
        found: list[Turn] = []
        kept: tuple[int, Measurement] | None = None
        for number, row in enumerate(self.rows, start=1):
            if row is None or row.status != "measured":
                continue
            direction = Change(kept[1], row).direction if kept else None
            if kept and direction:
                found.append(Turn(kept[0], number, direction))
            if kept is None or direction:
                kept = number, row
        return found

    @property
    def compared(self) -> int:
        """Counts the rows with an interval that are held against an earlier one."""
        return max(sum(row is not None and row.interval is not None for row in self.rows) - 1, 0)

    @property
    def reading(self) -> str:
        """The turns in words, and the limit that was crossed."""
        turns = [f"{turn.direction} {turn.before} → {turn.after}" for turn in self.turns]
        return ", ".join(filter(None, (*turns, self.crossed)))

    def cells(self) -> tuple[str, ...]:
        """Returns layer, metric, the values and the reading."""
        variant = f" ({variant_text(self.row.variant)})" if self.row.variant else ""
        values = " → ".join(map(side, self.rows))
        return self.row.layer or WHOLE_MODEL, self.row.id + variant, values, self.reading

    def to_json(self) -> dict[str, JsonValue]:
        """Returns the key, the row of each report, the turns and the limit that was crossed."""
        return {
            "audit": self.row.audit,
            "metric": self.row.metric,
            "layer": self.row.layer,
            "variant": dict(self.row.variant),
            "rows": [side_json(row) for row in self.rows],
            "turns": [
                {"from": turn.before, "to": turn.after, "direction": turn.direction}
                for turn in self.turns
            ],
            "crossed": self.crossed or None,
        }


def trends(reports: Sequence[Report], *, variants: bool = False) -> Iterator[Trend]:
    """Yields the rows of all reports, in the newest one's order, then those that are gone."""
    every = [
        {row.key: row for row in report.rows if variants or not row.variant} for report in reports
    ]
    crossed = crossings(reports[0], reports[-1])
    for key in dict.fromkeys(key for rows in reversed(every) for key in rows):
        yield Trend([rows.get(key) for rows in every], crossed.get(key, ""))


def shown_trends(found: Sequence[Trend]) -> list[Trend]:
    """Returns the trends that turned or crossed a limit; those that last turned worse first."""
    turned = [trend for trend in found if trend.turns or trend.crossed]
    return sorted(turned, key=lambda trend: not trend.turns or trend.turns[-1].direction != "worse")


def summary(names: Sequence[str], found: Sequence[Trend]) -> str:
    """Numbers the reports, counts the turns, and says how many luck alone would show."""
    turns = [turn.direction for trend in found for turn in trend.turns]
    compared = sum(trend.compared for trend in found)
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(names, start=1))
    return (
        f"{listed}: {turns.count('worse')} changes for the worse, {turns.count('better')} for the "
        f"better; luck alone would show about {BY_LUCK * compared:.1f} of {compared} comparisons"
    )


def print_trends(
    names: Sequence[str], found: Sequence[Trend], console: Console, most: int | None = MOST_ROWS
) -> None:
    """Print the summary and a line for each trend that is shown."""
    page, shown = Page(console), shown_trends(found)
    page.print(page.prose(summary(names, found)))
    if lines := [[page.text(cell) for cell in trend.cells()] for trend in shown[:most]]:
        columns = [
            Column(page.safe(h), [line[i] for line in lines]) for i, h in enumerate(HEADINGS)
        ]
        page.print(grid(columns[:2], columns[2:], page.width, page.rule))
    if left := len(shown) - len(lines):
        page.print(page.prose(LEFT_OUT.format(left)))


def markdown_trends(
    names: Sequence[str], found: Sequence[Trend], most: int | None = MOST_ROWS
) -> str:
    """Returns the summary and the trends as Markdown."""
    shown = shown_trends(found)
    rows = [
        [markdown_code(layer), markdown_code(metric), *rest]
        for layer, metric, *rest in (trend.cells() for trend in shown[:most])
    ]
    lines = ["", *markdown_table(HEADINGS, rows)] if rows else []
    left = len(shown) - len(rows)
    more = ["", LEFT_OUT.format(left)] if left else []
    return "\n".join([markdown_code(summary(names, found)), *lines, *more]) + "\n"
