"""Pictures of an audit: both hypotheses' statistics, and epsilon against clip and noise.

Li et al. 2024, figures 7 and 8. SVG and PNG, the same bytes for the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradaudit.dp.game import StatisticResult
from gradaudit.dp.laws import Statistic
from gradaudit.dp.run import Game
from gradaudit.pictures import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 60
_WIDE = 8
"""Settings that span such a factor are drawn on a logarithmic axis."""


def draw_histogram(path: Path, scores: Mapping[Statistic, StatisticResult]) -> None:
    """Histograms of the statistics under both hypotheses, a panel each, and the thresholds.

    Args:
        path: ends in .svg or .png.
        scores: what each statistic said, by its name.
    """
    with picture(path, len(scores)) as panels:
        for axes, (name, score) in zip(panels, scores.items(), strict=True):
            edges = np.histogram_bin_edges(np.concatenate([score.null, score.alternative]), BINS)
            for label, sample in (
                ("H0: own value", score.null),
                ("H1: another", score.alternative),
            ):
                counts = np.histogram(sample, edges)[0]
                axes.stairs(counts, edges, fill=True, alpha=0.6, label=label)
            for at, label in zip(score.bound.thresholds, ("threshold", "_hidden"), strict=True):
                axes.axvline(at, color="black", linewidth=1, label=label)
            bound = score.bound.value
            proved = f"ε ≥ {bound:.3g}" if bound else "nothing proved (ε ≥ 0)"
            axes.set(xlabel=name, ylabel="releases", title=proved)


def draw_curves(path: Path, sweeps: Mapping[str, Mapping[float, Game]]) -> None:
    """Epsilon against clip and against sigma, a panel each, on a logarithmic scale.

    Args:
        path: ends in .svg or .png.
        sweeps: by the name of what was swept, the games that needed trials, by its value.
    """
    with picture(path, len(sweeps)) as panels:
        for axes, (name, games) in zip(panels, sweeps.items(), strict=True):
            at = sorted(games)
            _curves(axes, at, [games[setting] for setting in at])
            axes.set(xlabel=name, ylabel="ε (logarithmic above 1)")
            axes.set_yscale("symlog", linthresh=1)
            axes.set_ylim(bottom=0)
            if at[-1] >= _WIDE * at[0]:
                axes.set_xscale("log")
                axes.set_xticks(at, [f"{setting:g}" for setting in at])
                axes.set_xticks([], minor=True)


def _curves(axes: Axes, at: Sequence[float], games: Sequence[Game]) -> None:
    promises, scores = [game.promise() for game in games], [game.score for game in games]
    for label, style, values in (
        (
            "theory, replace",
            "k.--",
            [promise.epsilon if promise else np.nan for promise in promises],
        ),
        (
            "exact for the pair",
            "k.:",
            [np.nan if game.pair is None else game.pair for game in games],
        ),
        ("lower bound", "o-", [score.bound.value for score in scores if score]),
    ):
        axes.plot(at, values, style, label=label, markersize=4)
    points = [score.point for score in scores if score]
    middle = np.array([point.value for point in points])
    ends = np.array([point.interval for point in points]).T
    errors = np.maximum(np.abs(ends - middle), 0)
    axes.errorbar(at, middle, errors, fmt="s", markersize=3, capsize=2, label="point estimate")
