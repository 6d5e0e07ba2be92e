"""Privacy-preserving characteristics (Fan et al. 2020, figure 5; Li et al. 2024, figure 6)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradaudit.core.drawing import picture
from gradaudit.core.text import printable
from gradaudit.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 6
_ACCURACY, _DISTANCE = "tab:orange", "tab:blue"
_MARKERS = ("o", "s", "^", "D")
_STYLES = ("-", "--", ":", "-.")
_LINE = 48
"""Letters of a title's line."""

Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Value:
    """A number, with its interval if it has one."""

    value: float
    interval: Interval = None


@dataclass(frozen=True)
class PanelPoint:
    """One setting's point in a panel.

    Attributes:
        position: log10(‖B‖/‖E‖ + 1); None where nothing was perturbed.
        accuracy: of the model trained with it.
        distances: by game.
    """

    position: float | None
    accuracy: Value
    distances: Mapping[str, Value] = field(default_factory=dict)


def expect_panels(panels: int) -> None:
    """Raise a UsageError where the picture has too many panels.

    Raises:
        UsageError: there are more panels than that.
    """
    if panels > MOST_PANELS:
        raise UsageError(
            f"--curves: {panels} panels (mechanisms × batch sizes) are more than {MOST_PANELS}; "
            "name fewer"
        )


def draw_characteristics(path: Path, panels: Mapping[str, Sequence[PanelPoint]]) -> None:
    """Accuracy (left axis) and distances (right axis) over the axis of perturbation.

    Args:
        path: ends in .svg, .png or .pdf.
        panels: points by title; a setting that perturbs nothing stands at the right edge.
    """
    with picture(path, len(panels)) as all_axes:
        for axes, (title, points) in zip(all_axes, panels.items(), strict=True):
            places = positions([point.position for point in points])
            order = np.argsort(places, kind="stable")
            ranked = [points[index] for index in order]
            _panel(axes, places[order], ranked)
            axes.set(xlabel="log10(‖B‖/‖E‖ + 1)")
            axes.set_title(textwrap.fill(printable(title), _LINE), fontsize=8)
            if any(point.position is None for point in points):
                axes.axvline(places.max(), color="lightgrey", linewidth=1, zorder=0)
                axes.annotate("no perturbation", (places.max(), 0), rotation=90, fontsize=7)


def positions(given: Sequence[float | None]) -> np.ndarray:
    """Place values on the axis, with infinite ones a step to the right of all others."""
    known = [place for place in given if place is not None]
    edge = max(known, default=0.0) + 0.5
    return np.array([edge if place is None else place for place in given])


def draw_advantages(
    path: Path, adversaries: Mapping[str, Mapping[str, Sequence[tuple[Value, Value]]]]
) -> None:
    """Advantage against accuracy, a panel for each adversary; an ideal defense is bottom right.

    Args:
        path: ends in .svg, .png or .pdf.
        adversaries: (accuracy, advantage) of every setting, by adversary and mechanism.
    """
    with picture(path, len(adversaries)) as all_axes:
        for axes, (title, mechanisms) in zip(all_axes, adversaries.items(), strict=True):
            for index, (mechanism, points) in enumerate(mechanisms.items()):
                x, y = _values([p for p, _ in points]), _values([p for _, p in points])
                axes.errorbar(
                    x[0],
                    y[0],
                    xerr=x[1],
                    yerr=y[1],
                    fmt=_MARKERS[index % len(_MARKERS)] + "-",
                    markersize=4,
                    linewidth=0.8,
                    label=printable(mechanism),
                )
            axes.set(title=printable(title), xlabel="accuracy", ylabel="advantage")


def _panel(axes: Axes, places: np.ndarray, points: Sequence[PanelPoint]) -> None:
    values, reaches = _values([point.accuracy for point in points])
    axes.errorbar(
        places, values, yerr=reaches, fmt="o-", color=_ACCURACY, markersize=3, label="accuracy"
    )
    right = axes.twinx()
    for index, game in enumerate(points[0].distances):
        values, reaches = _values([point.distances[game] for point in points])
        look = _MARKERS[index % len(_MARKERS)] + _STYLES[index % len(_STYLES)]
        right.errorbar(
            places, values, yerr=reaches, fmt=look, color=_DISTANCE, markersize=3, linewidth=1
        )
        axes.plot([], [], look, color=_DISTANCE, label=f"distance, {game}")
    for side, label, colour in ((axes, "accuracy", _ACCURACY), (right, "distance", _DISTANCE)):
        side.set_ylim(-0.02, 1.05)
        side.set_ylabel(label, color=colour)
        side.tick_params(axis="y", labelcolor=colour)


def _values(given: Sequence[Value]) -> tuple[np.ndarray, np.ndarray]:
    """Return values (points,) and their distances to the ends of the intervals, (2, points)."""
    middle = np.array([value.value for value in given])
    ends = np.array([value.interval or (value.value, value.value) for value in given]).T
    return middle, np.abs(ends - middle)
