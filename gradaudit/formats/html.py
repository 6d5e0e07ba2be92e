"""The report as one HTML page that holds everything, fetches nothing and runs nothing.

Dot-and-interval strips as SVG, a layer each, on one axis whose right side is always the worse.

Lengths along the axis are percentages and all else is in pixels, so that a strip is as wide as its
place and its dots and words are never stretched.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape
from pydantic import JsonValue

from gradaudit.core.text import UNBOUNDED, printable, variant_text
from gradaudit.errors import UsageError
from gradaudit.formats.base import Format
from gradaudit.judging import Policy
from gradaudit.judging.policy import known_metrics
from gradaudit.judging.risk import Level
from gradaudit.report import Report, marked
from gradaudit.view import Cell, LayerLine, MetricColumn, View, view
from gradaudit.view.charts.plots import chart, round_step
from gradaudit.view.examples import pictures_of, texts_of

MOST_TICKS = 4
WIDE = 30
"""Factor between positive values from which on an axis is logarithmic."""
HEIGHT = 26
_MIDDLE = HEIGHT // 2
_MARGIN = 4.0
"""Margin at either end of the axis, in percent."""
SHAPES: dict[Level | None, str] = {
    "high": "M0-7 7 6-7 6Z",
    "medium": "M0-7 7 0 0 7-7 0Z",
    "low": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z",
}
NOTHING = "none"
"""CSS class of cells that show no risk and exclude none: not tested, unknown, undecided."""


@dataclass(frozen=True)
class StripAxis:
    """Positions of values on a strip, in percent of its width; worse values at the right."""

    low: float
    high: float
    logarithmic: bool = False
    reversed: bool = False

    def at(self, value: float) -> float:
        """Returns the place of a value; a value beyond an end is placed at that end."""
        span = self._scaled(self.high) - self._scaled(self.low)
        share = (self._scaled(value) - self._scaled(self.low)) / span if span else 0.5
        share = min(1.0, max(0.0, share))
        return _MARGIN + (100 - 2 * _MARGIN) * (1 - share if self.reversed else share)

    def ticks(self) -> list[float]:
        """Returns a few round values within the axis."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            decades = max(1, math.ceil((last - first) / MOST_TICKS))
            return [10.0**power for power in range(first, last + 1, decades)]
        step = round_step((self.high - self.low) / MOST_TICKS)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _scaled(self, value: float) -> float:
        if self.logarithmic:
            return math.log10(max(value, self.low))
        return value / max(abs(self.low), abs(self.high), 1e-300)


def axis_of(column: MetricColumn, cells: Sequence[Cell]) -> StripAxis:
    """Returns an axis that spans every value, interval, floor, limit and chance of a column."""
    values = [value for cell in cells for value in _values(cell)]
    values += [limit for _, limit in column.limits]
    values += [] if column.chance is None else [column.chance]
    values = [value for value in values if abs(value) < UNBOUNDED] or [0.0]
    positive = [value for value in values if value > 0]
    low, high = min(values), max(values)
    wide = bool(positive) and low >= 0 and max(positive) >= WIDE * min(positive)
    low = min(positive) if wide else low
    if high - low <= abs(high) * 1e-9:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    return StripAxis(low, high, wide, column.sign < 0)


def strip(line: LayerLine, cell: Cell, column: MetricColumn, axis: StripAxis) -> Markup:
    """Returns one layer's strip: dot, interval, floor, limits and chance, with a title in words."""
    title = printable(f"{line.name}: {cell_words(cell)}", limit=None)
    parts = (*_marks(column, axis), *_floor(cell, axis), *_interval(cell, axis), _dot(cell, axis))
    return Markup(
        '<svg class="strip" role="img" width="100%" height="{}"><title>{}</title>{}</svg>'
    ).format(HEIGHT, title, Markup("").join(parts))


def ruler(axis: StripAxis) -> Markup:
    """Returns the axis with its ticks."""
    ticks = Markup("").join(
        Markup('<text x="{:.1f}%" y="12">{}</text>').format(axis.at(tick), f"{tick:.4g}")
        for tick in axis.ticks()
    )
    return Markup(
        '<svg class="ruler" width="100%" height="16" aria-hidden="true"><title>axis</title>{}</svg>'
    ).format(ticks)


def cell_words(cell: Cell) -> str:
    """Formats a number in words: ``0.920 [0.846, 0.994], permuted 0.524, high``."""
    floor = f"permuted {cell.floor}" if cell.floor else ""
    left = f"{cell.possible} not excluded" if cell.possible else ""
    judged = "within its limits" if cell.judged else "no rule judged it"
    shown = cell.level or (judged if cell.measured and not left else "")
    return ", ".join(filter(None, (cell.full or "no row", floor, shown, left)))


def shape(level: Level | None, *, hollow: bool = False) -> Markup:
    """Returns the sign of a risk: a triangle, a diamond, a dot; hollow where it is undecided.

    A grey hollow dot where there is no evidence: not tested, unknown, or not judged.
    """
    known = level in SHAPES
    return Markup('<path class="dot {}{}" d="{}"/>').format(
        level if known else NOTHING,
        " hollow" if hollow or not known else "",
        SHAPES[level if known else "low"],
    )


def _values(cell: Cell) -> Iterator[float]:
    if cell.row is None or cell.row.value is None:
        return
    yield cell.row.value
    yield from cell.row.interval or ()
    if cell.floor:
        yield cell.floor.value
        yield from cell.floor.interval or ()


def _marks(column: MetricColumn, axis: StripAxis) -> Iterator[Markup]:
    """Returns chance and limits as lines across the strip."""
    lines = [("chance", column.chance)] if column.chance is not None else []
    for kind, value in (*lines, *((f"limit {level}", limit) for level, limit in column.limits)):
        x = f"{axis.at(value or 0.0):.1f}%"
        yield Markup('<line class="{}" x1="{}" x2="{}" y1="0" y2="{}"/>').format(kind, x, x, HEIGHT)


def _floor(cell: Cell, axis: StripAxis) -> Iterator[Markup]:
    if cell.floor:
        x, width = _span(axis, cell.floor.interval or (cell.floor.value, cell.floor.value))
        yield Markup('<rect class="floor" x="{:.1f}%" width="{:.1f}%" y="3" height="{}"/>').format(
            x, max(width, 0.5), HEIGHT - 6
        )


def _interval(cell: Cell, axis: StripAxis) -> Iterator[Markup]:
    if cell.row is not None and cell.row.interval is not None and cell.row.value is not None:
        x, width = _span(axis, cell.row.interval)
        yield Markup('<line class="interval" x1="{:.1f}%" x2="{:.1f}%" y1="{}" y2="{}"/>').format(
            x, x + width, _MIDDLE, _MIDDLE
        )


def _dot(cell: Cell, axis: StripAxis) -> Markup:
    """Returns the number in the shape of its risk; infinity is drawn at the end of the axis."""
    value = cell.row.number if cell.row else None
    if value is None:
        words = escape("not measured" if not cell.failed else "failed")
        return Markup('<text class="none" x="50%" y="17">{}</text>').format(words)
    hollow = cell.level is None and cell.possible is not None
    level = cell.level or cell.possible or ("low" if cell.judged else None)
    return Markup('<svg x="{:.1f}%" y="{}" overflow="visible">{}</svg>').format(
        axis.at(value), _MIDDLE, shape(level, hollow=hollow)
    )


def _span(axis: StripAxis, ends: tuple[float, float]) -> tuple[float, float]:
    """Returns the left end and the width of an interval on the axis."""
    left, right = sorted(map(axis.at, ends))
    return left, right - left


_WORDS = {
    "HIGH, MEDIUM": "the whole interval lies beyond the limit of an error rule (HIGH) or of a "
    "warning rule (MEDIUM)",
    "OPEN": "undecided: the interval holds a limit, or the attack was too weak to exclude more",
    "LOW": "no limit is shown to be exceeded; this does not prove privacy",
    "closed form": "the layer's gradient gives its input exactly",
    "UNKNOWN": "a number that a rule asks for could not be measured",
    "–": "no audit attacked the layer's gradient by itself",
    "[low, high]": "the interval that holds the true value at the stated confidence",
    "permuted": "the same number for the attribute shuffled among the records, about which "
    "gradients say nothing",
    "chance": "the value that the number has where nothing is given away",
    "game": "how many records are in the update that is attacked",
    "hidden": "a layer whose gradient is never shared",
}
MAX_LAYERS = 40_000
"""Largest number of layers of a page, which take 4 seconds."""
MOST_ROWS = 1000
"""Most rows in the list of all measurements; a sweep may have many thousands."""
MOST_LAYERS = 50
"""Most layers of the table that are not folded away."""
MOST_STRIPS = 20
LONG_WORD = 20
"""Characters from which on a word is taken for a name that may be broken."""
_BREAKS = re.compile(r"([./:,]|[-_](?=\w))")
_OPTION = re.compile(r"--[a-z]")
_PAGE = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    finalize=lambda value: _harmless(value),
    trim_blocks=True,
    lstrip_blocks=True,
)


class Html(Format):
    """One self-contained page for a phone, a screen or paper.

    Every string of the report is escaped, wherever it came from.
    """

    name = "html"
    suffix = ".html"
    summary = "one page with strips and intervals, for people and for print"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The report as a page.

        Raises:
            UsageError: it has more layers than a page can show.
        """
        if (count := len({row.layer for row in report.rows})) > MAX_LAYERS:
            raise UsageError(
                f"a page of {count:,} layers is too long to be shown (at most {MAX_LAYERS:,}); "
                "write the report as .json or .md, or audit fewer layers by --layer"
            )
        shown = view(report, policy)
        page = _PAGE.get_template("page.html.jinja").render(
            shown=shown,
            charts=_charts(shown),
            shape=shape,
            chart=chart,
            breakable=breakable,
            prose=prose,
            glossary=glossary(shown),
            pictures=list(pictures_of(report)),
            texts=list(texts_of(report)),
            checkpoints=report.target.checkpoints,
            facts={"data": _flat(report.data), "provenance": _flat(report.provenance)},
            rows=[
                (row, variant_text(row.variant), marked(row) if row.status == "measured" else "")
                for row in report.rows[:MOST_ROWS]
            ],
            unlisted=max(0, len(report.rows) - MOST_ROWS),
            most_layers=MOST_LAYERS,
        )
        return f"{page}\n"


class Chart(NamedTuple):
    """A chart of one question: a name and a strip for each layer, on one axis."""

    column: MetricColumn
    ruler: Markup
    strips: Sequence[tuple[str, Markup, str]]


def _charts(shown: View) -> list[Chart]:
    """Yields a chart for each question, with the riskiest layers."""
    lines = shown.layers.riskiest(MOST_STRIPS)
    charts = []
    for i, column in enumerate(shown.layers.questions):
        axis = axis_of(column, [line.answers[i] for line in lines])
        strips = [
            (line.name, strip(line, line.answers[i], column, axis), line.answers[i].brief)
            for line in lines
        ]
        charts.append(Chart(column, ruler(axis), strips))
    return charts


def breakable(name: str) -> Markup:
    """Returns a name that may break after its points and dashes, and nowhere inside a word."""
    parts = _BREAKS.split(printable(name, limit=None))
    return Markup("<wbr>").join(
        escape(word + mark) for word, mark in zip(parts[::2], [*parts[1::2], ""], strict=True)
    )


def prose(text: str) -> Markup:
    """Returns a sentence whose options (``--hide``) stay whole, and whose long names may break."""
    return Markup(" ").join(map(_word, printable(text, limit=None).split(" ")))


def _word(word: str) -> Markup:
    if _OPTION.search(word):
        return Markup('<span class="cell">{}</span>').format(word)
    return breakable(word) if len(word) > LONG_WORD else escape(word)


def _flat(facts: Mapping[str, JsonValue], prefix: str = "") -> dict[str, str]:
    """Flattens facts to lines, as ``versions.torch``; lists and empty values become JSON."""
    lines: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            lines |= _flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines[prefix + key] = text
    return lines


def _harmless(value: Any) -> Any:
    """Returns text without control characters; markup stays as it is."""
    plain = isinstance(value, str) and not hasattr(value, "__html__")
    return printable(value, limit=None) if plain else value


def glossary(shown: View) -> dict[str, str]:
    """Returns the words that every report uses, and the metrics that this one shows."""
    known = known_metrics()
    shown_metrics = [x.metric for x in shown.layers.columns] + [x.metric for x in shown.model]
    metrics = {
        name: f"{known[name].title}{f' ({unit})' if (unit := known[name].unit) else ''}"
        for name in dict.fromkeys(shown_metrics)
        if name in known
    }
    return {**_WORDS, **metrics}
