"""Dot-and-interval strips as SVG, a layer each, on one axis whose right side is always the worse.

Lengths along the axis are percentages and all else is in pixels, so that a strip is as wide as its
place and its dots and words are never stretched.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from gradaudit.judging.risk import Level
from gradaudit.text import UNBOUNDED, printable
from gradaudit.view import Cell, LayerLine, MetricColumn

MOST_TICKS = 4
WIDE = 1000
"""Positive values that span such a factor are drawn on a logarithmic axis."""
HEIGHT = 26
_MIDDLE = HEIGHT // 2
_MARGIN = 4.0
"""Percent of the axis at either side."""
SHAPES: dict[Level | None, str] = {
    "high": "M0-7 7 6-7 6Z",
    "medium": "M0-7 7 0 0 7-7 0Z",
    "low": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z",
}
NOTHING = "none"
"""The class of what shows no risk and excludes none: not tested, unknown, undecided, not judged."""


@dataclass(frozen=True)
class StripAxis:
    """Positions of values on a strip, in percent of its width; worse values at the right."""

    low: float
    high: float
    logarithmic: bool = False
    reversed: bool = False

    def at(self, value: float) -> float:
        """The place of a value; beyond an end it is that end."""
        span = self._scaled(self.high) - self._scaled(self.low)
        share = (self._scaled(value) - self._scaled(self.low)) / span if span else 0.5
        share = min(1.0, max(0.0, share))
        return _MARGIN + (100 - 2 * _MARGIN) * (1 - share if self.reversed else share)

    def ticks(self) -> list[float]:
        """A few round values."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            decades = max(1, math.ceil((last - first) / MOST_TICKS))
            return [10.0**power for power in range(first, last + 1, decades)]
        step = _round_step((self.high - self.low) / MOST_TICKS)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _scaled(self, value: float) -> float:
        if self.logarithmic:
            return math.log10(max(value, self.low))
        return value / max(abs(self.low), abs(self.high), 1e-300)


def axis_of(column: MetricColumn, cells: Sequence[Cell]) -> StripAxis:
    """An axis that holds every value, interval, floor, limit and the chance of a column."""
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
    """One layer's number: dot, interval, floor, limits and chance, with a title that says them."""
    title = printable(f"{line.name}: {cell_words(cell)}", limit=None)
    parts = (*_marks(column, axis), *_floor(cell, axis), *_interval(cell, axis), _dot(cell, axis))
    return Markup(
        '<svg class="strip" role="img" width="100%" height="{}"><title>{}</title>{}</svg>'
    ).format(HEIGHT, title, Markup("").join(parts))


def ruler(axis: StripAxis) -> Markup:
    """The axis with its ticks."""
    ticks = Markup("").join(
        Markup('<text x="{:.1f}%" y="12">{}</text>').format(axis.at(tick), f"{tick:.4g}")
        for tick in axis.ticks()
    )
    return Markup(
        '<svg class="ruler" width="100%" height="16" aria-hidden="true"><title>axis</title>{}</svg>'
    ).format(ticks)


def cell_words(cell: Cell) -> str:
    """A number in words: ``0.920 [0.846, 0.994], permuted 0.524, high``."""
    floor = f"permuted {cell.floor}" if cell.floor else ""
    left = f"{cell.possible} not excluded" if cell.possible else ""
    judged = "within its limits" if cell.judged else "no rule judged it"
    shown = cell.level or (judged if cell.measured and not left else "")
    return ", ".join(filter(None, (cell.full or "no row", floor, shown, left)))


def shape(level: Level | None, *, hollow: bool = False) -> Markup:
    """The sign of a risk: a triangle, a diamond, a dot; hollow where it is undecided.

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
    """Chance and limits, as lines across the strip."""
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
    """The number, in the shape of its risk; infinity lies at the end of the axis."""
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
    """Left side and width."""
    left, right = sorted(map(axis.at, ends))
    return left, right - left


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, … times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))
