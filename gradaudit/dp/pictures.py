"""Pictures of an audit: both hypotheses' statistics, and epsilon against clip and noise.

Li et al. 2024, figures 7 and 8. SVG and PNG, the same bytes for the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradaudit.dp.degenerate import Verdict
from gradaudit.dp.game import StatisticResult
from gradaudit.dp.laws import Statistic
from gradaudit.dp.run import Game
from gradaudit.pictures import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 60
_WIDE = 8
"""Settings that span such a factor are drawn on a logarithmic axis."""


@dataclass(frozen=True)
class SweepPoint:
    """Epsilons at one setting.

    Attributes:
        at: clip or sigma.
        lower: the valid lower bound.
        point: the paper's estimate, no bound.
        interval: of the estimate.
        pair: exact epsilon of the pair.
        theory: what the mechanism promises for a replaced record.
    """

    at: float
    lower: float
    point: float
    interval: tuple[float, float]
    pair: float
    theory: float

    @classmethod
    def of(cls, game: Game, at: float) -> SweepPoint | None:
        """The epsilons of a game; None where it was decided without trials, or not at all."""
        rules, pair = game.rules, game.hypotheses
        promise = game.mechanism.promise("replace", pair.records, pair.elements, rules.delta)
        if isinstance(game.result, Verdict) or game.result.dependent:
            return None
        if game.pair is None or promise is None:
            return None
        score = game.result.scores[rules.statistic]
        return cls(
            at=at,
            lower=score.bound.value,
            point=score.point.value,
            interval=score.point.interval,
            pair=game.pair,
            theory=promise.epsilon,
        )


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


def draw_curves(path: Path, sweeps: Mapping[str, Sequence[SweepPoint]]) -> None:
    """Epsilon against clip and against sigma, a panel each, on a logarithmic scale.

    Args:
        path: ends in .svg or .png.
        sweeps: points by the name of what was swept.
    """
    with picture(path, len(sweeps)) as panels:
        for axes, (name, points) in zip(panels, sweeps.items(), strict=True):
            _curves(axes, points)
            axes.set(xlabel=name, ylabel="ε (logarithmic above 1)")
            axes.set_yscale("symlog", linthresh=1)
            axes.set_ylim(bottom=0)
            if points and max(p.at for p in points) >= _WIDE * min(p.at for p in points):
                axes.set_xscale("log")
                at = sorted(point.at for point in points)
                axes.set_xticks(at, [f"{setting:g}" for setting in at])
                axes.set_xticks([], minor=True)


def _curves(axes: Axes, unordered: Sequence[SweepPoint]) -> None:
    points = sorted(unordered, key=lambda point: point.at)
    at = [point.at for point in points]
    for label, style, values in (
        ("theory, replace", "k.--", [point.theory for point in points]),
        ("exact for the pair", "k.:", [point.pair for point in points]),
        ("lower bound", "o-", [point.lower for point in points]),
    ):
        axes.plot(at, values, style, label=label, markersize=4)
    middle = np.array([point.point for point in points])
    ends = np.array([point.interval for point in points]).T
    errors = np.maximum(np.abs(ends - middle), 0)
    axes.errorbar(at, middle, errors, fmt="s", markersize=3, capsize=2, label="point estimate")
