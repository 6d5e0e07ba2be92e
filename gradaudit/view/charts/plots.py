"""Small line charts as SVG, for a page that loads nothing: a colour and a dash for each line."""

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from gradaudit.core.text import UNBOUNDED, printable
from gradaudit.view.charts.sweep import CurvePanel, CurvePoint, Curves

WIDTH, HEIGHT = 300, 170
LEFT, BOTTOM, TOP, RIGHT = 52, 28, 8, 10
STYLES = 6
"""Number of styles of lines; more lines begin with the first again."""
_WIDE = 50.0
"""Factor between x values from which on they stand at equal distances."""


def chart(curves: Curves, panel: CurvePanel) -> Markup:
    """Returns one layer's curves, with their intervals, on axes that all layers share."""
    every = [point for each in curves.panels for line in each.lines.values() for point in line]
    xs = sorted({point.x for point in every})
    ends = [y for p in every for y in (p.value, p.low, p.high) if abs(y) < UNBOUNDED]
    place = _Places(xs, round_ticks(min([0.0, *ends]), max([*ends, 0.0])))
    title = f"{panel.layer}: {curves.metric} along {curves.axis}"
    return Markup(
        '<svg class="curves" role="img" viewBox="0 0 {} {}"><title>{}</title>{}{}</svg>'
    ).format(
        WIDTH,
        HEIGHT,
        printable(title, limit=None),
        Markup("").join(_frame(curves, place)),
        Markup("").join(
            part for i, line in enumerate(panel.lines.values()) for part in _line(line, place, i)
        ),
    )


class _Places:
    """Positions of values in the chart; x values far apart stand at equal distances."""

    def __init__(self, xs: Sequence[float], ticks: Sequence[float]) -> None:
        self.xs, self.ticks, self.low, self.high = xs, ticks, ticks[0], ticks[-1]
        far = xs[0] > 0 and xs[-1] >= _WIDE * xs[0]
        self.at = {x: float(i) if far else x for i, x in enumerate(xs)}

    def x(self, value: float) -> float:
        first, last = self.at[self.xs[0]], self.at[self.xs[-1]]
        share = (self.at[value] - first) / (last - first) if last > first else 0.5
        return LEFT + 6 + share * (WIDTH - LEFT - RIGHT - 12)

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def round_ticks(low: float, high: float) -> list[float]:
    """Returns round values at equal distances, the first at or below ``low``, the last at or above.

    There are three to five of them; two where all values are 0.
    """
    step = round_step((high - low) / 3 or 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def round_step(least: float) -> float:
    """Returns the next of 1, 2, 5, 10, … times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))


def _frame(curves: Curves, place: _Places) -> Iterator[Markup]:
    for value in place.ticks:
        yield Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
            '<text x="{}" y="{:.1f}" text-anchor="end">{}</text>'
        ).format(
            LEFT,
            WIDTH - RIGHT,
            place.y(value),
            place.y(value),
            LEFT - 4,
            place.y(value) + 4,
            f"{value:.4g}",
        )
    shown = place.xs[:: max(1, -(-len(place.xs) // 6))]
    for x in shown:
        yield Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            place.x(x), HEIGHT - 10, printable(curves.places.get(x, f"{x:.10g}"), limit=14)
        )


def _line(points: Sequence[CurvePoint], place: _Places, turn: int) -> Iterator[Markup]:
    style = f"line-{turn % STYLES}"
    path = " ".join(f"{place.x(p.x):.1f},{place.y(p.value):.1f}" for p in points)
    yield Markup('<polyline class="{}" points="{}"/>').format(style, path)
    for p in points:
        yield Markup(
            '<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>'
            '<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="3"/>'
        ).format(
            style,
            place.x(p.x),
            place.x(p.x),
            place.y(p.low),
            place.y(p.high),
            style,
            place.x(p.x),
            place.y(p.value),
        )
