"""Draws a metric over a sweep: a panel for each layer, a colour for each setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradaudit.core.drawing import picture
from gradaudit.core.text import printable
from gradaudit.errors import UsageError
from gradaudit.report import Measurement, Report, Variant
from gradaudit.sweeping.grid import Axis, axes_of, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
MOST_PANELS = 12
_WHOLE = "whole model"
_WIDE = 8
"""Factor between values from which on an axis is logarithmic."""
_MOST_TICKS = 6


def draw_sweep(
    path: Path,
    report: Report,
    metric: str,
    *,
    relative: bool = False,
    chance: float | None = None,
) -> None:
    """Draw one metric of a sweep, with its intervals.

    Each layer has a panel, each setting of the other axes a colour, and all panels share one y
    axis. The x axis is the first axis that holds numbers, or else the first. With more layers than
    panels, those are drawn whose values differ most between settings.

    Args:
        path: ends in .svg, .png or .pdf.
        report: of the sweep, which names its axes.
        metric: ``audit.metric``.
        relative: draw instead each setting's values over the layers, relative to its largest value,
            with one LOESS curve through all (Mo22, figure 3).
        chance: the metric's value under no information, which is drawn as a line.

    Raises:
        UsageError: the report is not of a sweep, or the metric was not measured in it.
    """
    axes = axes_of(report)
    names = {axis.name for axis in axes}
    rows = [r for r in report.select(metric) if r.variant.keys() == names and r.value is not None]
    if not rows:
        raise UsageError(
            f"--curves: {metric} was not measured, so that nothing can be drawn; "
            "name another --metric"
        )
    if relative:
        _draw_relative(path, rows, [layer.name for layer in report.target.layers])
    else:
        _draw_layers(path, rows, axes, metric, chance)


def _draw_layers(
    path: Path,
    rows: Sequence[Measurement],
    axes: Sequence[Axis],
    metric: str,
    chance: float | None,
) -> None:
    along = next((axis for axis in axes if axis.numbers), axes[0])
    variants = [point.variant for point in points(axes)]
    settings = list(dict.fromkeys(_setting(variant, along.name) for variant in variants))
    layers = list(dict.fromkeys(row.layer for row in rows))
    drawn = _most_varied(layers, rows)
    with picture(path, len(drawn), shared=True) as panels:
        for panel, layer in zip(panels, drawn, strict=True):
            own = [row for row in rows if row.layer == layer]
            for colour, setting in enumerate(settings):
                line = [row for row in own if _setting(row.variant, along.name) == setting]
                _draw_line(panel, line, along, f"C{colour % 10}", printable(setting))
            if chance is not None:
                panel.axhline(chance, color="grey", linestyle=":", label="chance")
            _label(panel, along)
            panel.set(title=printable(layer or _WHOLE), xlabel=printable(along.name))
        unit = f" ({printable(rows[0].unit)})" if rows[0].unit else ""
        panels[0].set_ylabel(printable(metric).replace(".", ".\n", 1) + unit)
        if len(drawn) < len(layers):
            panels[-1].set_title(f"{panels[-1].get_title()} ({len(drawn)} of {len(layers)} layers)")


def _setting(variant: Variant, along: str) -> str:
    return ", ".join(f"{name} {value}" for name, value in variant.items() if name != along)


def _most_varied(layers: Sequence[str | None], rows: Sequence[Measurement]) -> Sequence[str | None]:
    spread = {
        layer: float(np.ptp([row.value or 0.0 for row in rows if row.layer == layer]))
        for layer in layers
    }
    chosen = sorted(spread, key=lambda layer: -spread[layer])[:MOST_PANELS]
    return [layer for layer in layers if layer in chosen]


def _draw_line(
    panel: Axes, rows: Sequence[Measurement], along: Axis, color: str, label: str
) -> None:
    if not rows:
        return
    places = along.places
    line = sorted(rows, key=lambda row: places[row.variant[along.name]])
    x = [places[row.variant[along.name]] for row in line]
    most = max(row.value or 0.0 for row in rows)
    low, high = np.array([_ends(row, most) for row in line]).T
    values = [row.value or 0.0 for row in line]
    shape = "o-" if along.numbers else "o"
    panel.plot(x, values, shape, markersize=3, linewidth=1, color=color, label=label)
    panel.vlines(x, low, high, color=color, alpha=0.4)


def _label(panel: Axes, along: Axis) -> None:
    at = list(along.places.values())
    if not along.numbers:
        names = [printable(str(place)) for place in along.places]
        panel.set_xticks(at, names, rotation=30, ha="right")
        return
    if min(at) > 0 and max(at) >= _WIDE * min(at):
        panel.set_xscale("log")
    if len(at) <= _MOST_TICKS:  # after the scale, which puts powers of ten along the axis
        panel.set_xticks(at, [f"{place:.4g}" for place in at])
        panel.set_xticks([], minor=True)


def _ends(row: Measurement, most: float) -> tuple[float, float]:
    """Ends of an interval; an infinite end is drawn at the layer's largest value."""
    value = row.value or 0.0
    low, high = row.interval or (value, value)
    return low, most if row.unbounded else high


def _draw_relative(path: Path, rows: Sequence[Measurement], layers: Sequence[str]) -> None:
    order = {name: i for i, name in enumerate(layers)}
    points = [(order[r.layer], _setting(r.variant, ""), r.value or 0.0) for r in rows if r.layer]
    if not points:
        raise UsageError("--relative draws over the layers, and no layer was measured")
    largest = {setting: max(v for _, s, v in points if s == setting) for _, setting, _ in points}
    x = np.array([place for place, _, _ in points], dtype=float)
    y = np.array([value / (largest[setting] or 1) for _, setting, value in points])
    with picture(path, 1) as (axes,):
        for setting in largest:
            chosen = np.array([s == setting for _, s, _ in points])
            axes.plot(x[chosen], y[chosen], "o", markersize=4, alpha=0.7, label=printable(setting))
        places = np.linspace(x.min(), x.max(), 100)
        if len(points) > 2:
            axes.plot(places, loess(x, y, places), color="black", linewidth=1, label="LOESS")
        axes.set_xticks(
            list(order.values()), [printable(n) for n in order], rotation=45, ha="right"
        )
        axes.set(xlabel="layer", ylabel="relative to the largest of each setting")


def loess(x: Floats, y: Floats, at: Floats, span: float = 0.75) -> Floats:
    """Local linear regression with tricube weights over the nearest share of the points.

    Source: W. S. Cleveland, "Robust locally weighted regression and smoothing scatterplots"
    (1979), without the robustness iterations; Mo22, figure 3, draws its trend with it.

    Args:
        x: (points,).
        y: (points,).
        at: (places,) where the curve is wanted.
        span: share of the points that each fit sees, in (0, 1].

    Returns:
        (places,).
    """
    nearest = max(2, int(np.ceil(span * len(x))))
    distance = np.abs(x - at[:, None])
    reach = np.partition(distance, nearest - 1, axis=1)[:, nearest - 1 : nearest]
    reach = np.maximum(reach, np.finfo(float).tiny)
    weights = (1 - np.minimum(distance / reach, 1) ** 3) ** 3
    weights += (distance == 0) & (weights.sum(axis=1, keepdims=True) == 0)
    total = weights.sum(axis=1)
    x_mean, y_mean = weights @ x / total, weights @ y / total
    off = x - x_mean[:, None]
    spread = (weights * off**2).sum(axis=1)
    slope = np.divide(
        (weights * off * (y - y_mean[:, None])).sum(axis=1),
        spread,
        out=np.zeros_like(spread),
        where=spread > 1e-12 * total * reach[:, 0] ** 2,
    )
    fitted: Floats = y_mean + slope * (at - x_mean)
    return fitted
