"""Draws a sweep: a metric against the varied setting, or over the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import UsageError
from gradaudit.pictures import picture
from gradaudit.report import Measurement, Report
from gradaudit.sweeping.grid import Axis, GridPoint
from gradaudit.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
Placed = tuple[str | int | float | bool, Measurement]
"""A row with its value on the first axis."""

MOST_PANELS = 6
_WHOLE = "whole model"
_WIDE = 8
"""Factor between values from which on an axis is logarithmic."""


def expect_panels(axes: Sequence[Axis]) -> None:
    """Raise an error where the sweep needs more panels than the picture has room for.

    Raises:
        UsageError: there are too many.
    """
    panels = int(np.prod([len(axis.values) for axis in axes[1:]]))
    if panels > MOST_PANELS:
        raise UsageError(
            f"--curves: {panels} panels (settings of {', '.join(a.name for a in axes[1:])}) are "
            f"more than {MOST_PANELS}; vary less beside {axes[0].name}"
        )


def draw_sweep(path: Path, report: Report, axes: Sequence[Axis], metric: str) -> None:
    """Draw one metric of a sweep.

    Where the first axis holds numbers, the metric is drawn against them, a line with its intervals
    for each layer. Otherwise it is drawn over the layers, relative to each setting's largest, with
    a LOESS curve through all settings, as Mo22's figure 3 does for many attributes.

    Args:
        path: ends in .svg or .png.
        report: of the sweep, its rows told apart by variants.
        axes: what was varied; each setting of all but the first has a panel.
        metric: ``audit.metric``.

    Raises:
        UsageError: the metric was not measured.
    """
    settings = _by_setting(report, axes, metric)
    if not settings:
        raise UsageError(
            f"--curves: {metric} was not measured, so that nothing can be drawn; "
            "name another --metric"
        )
    name = axes[0].name
    places = [GridPoint({name: value}).variant[name] for value in axes[0].values]
    numeric = all(isinstance(place, int | float) for place in places)
    with picture(path, len(settings)) as panels:
        for axes_, (setting, rows) in zip(panels, settings.items(), strict=True):
            (_against_values if numeric else _over_layers)(axes_, rows, name, report)
            axes_.set(ylabel=printable(metric), title=printable(setting))


def _by_setting(report: Report, axes: Sequence[Axis], metric: str) -> dict[str, list[Placed]]:
    """Groups headline rows, with their value on the first axis, by the other axes' setting."""
    names = {axis.name for axis in axes}
    settings: dict[str, list[Placed]] = {}
    for row in report.select(metric):
        if set(row.variant) == names and row.value is not None:
            setting = ", ".join(f"{axis.name} {row.variant[axis.name]}" for axis in axes[1:])
            settings.setdefault(setting, []).append((row.variant[axes[0].name], row))
    return settings


def _against_values(axes: Axes, rows: Sequence[Placed], name: str, report: Report) -> None:
    for layer, line in _lines(rows).items():
        at = np.array([float(value) for value, _ in line])
        middle = np.array([row.value for _, row in line], dtype=float)
        ends = np.array([_ends(row, middle.max()) for _, row in line], dtype=float)
        axes.plot(at, middle, "o-", markersize=3, linewidth=1, label=printable(layer))
        axes.fill_between(at, ends[:, 0], ends[:, 1], alpha=0.15)
    values = np.array([float(value) for value, _ in rows])
    if values.min() > 0 and values.max() >= _WIDE * values.min():
        axes.set_xscale("log")
    axes.set_xlabel(printable(name))


def _ends(row: Measurement, most: float) -> tuple[float, float]:
    """Ends of the shaded band; an infinite end is drawn at the largest value."""
    value = row.value or 0.0
    low, high = row.interval or (value, value)
    return low, most if row.unbounded else high


def _lines(rows: Sequence[Placed]) -> Mapping[str, list[tuple[float, Measurement]]]:
    lines: dict[str, list[tuple[float, Measurement]]] = {}
    for value, row in sorted(rows, key=lambda pair: float(pair[0])):
        lines.setdefault(row.layer or _WHOLE, []).append((float(value), row))
    return lines


def _over_layers(axes: Axes, rows: Sequence[Placed], name: str, report: Report) -> None:
    order = {layer.name: i for i, layer in enumerate(report.target.layers)}
    points = [(order[row.layer], value, row) for value, row in rows if row.layer in order]
    if not points:
        raise UsageError("--curves: draws over the layers, and no layer was measured")
    largest = {
        value: max(r.value or 0 for _, v, r in points if v == value) for _, value, _ in points
    }
    x = np.array([position for position, _, _ in points], dtype=float)
    y = np.array([(row.value or 0) / (largest[value] or 1) for _, value, row in points])
    for value in dict.fromkeys(value for _, value, _ in points):
        chosen = np.array([v == value for _, v, _ in points])
        axes.plot(x[chosen], y[chosen], "o", markersize=4, alpha=0.7, label=printable(str(value)))
    places = np.linspace(x.min(), x.max(), 100)
    if len(points) > 2:
        axes.plot(places, loess(x, y, places), color="black", linewidth=1, label="LOESS")
    axes.set_xticks(list(order.values()), [printable(n) for n in order], rotation=45, ha="right")
    axes.set_xlabel(f"layer, relative to the largest of each {printable(name)}")


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
