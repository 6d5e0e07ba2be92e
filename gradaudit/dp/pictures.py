"""Pictures of an audit: both hypotheses' statistics, and epsilon against clip and noise.

Li et al. 2024, figures 7 and 8. SVG and PNG, the same bytes for the same numbers.
"""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradaudit.dp.game import Score
from gradaudit.dp.sweeps import Point
from gradaudit.dp.trials import Statistic
from gradaudit.errors import UsageError
from gradaudit.report import write_atomically

BINS = 60
SUFFIXES = (".svg", ".png")
_STYLE: Any = {"svg.hashsalt": "gradaudit", "svg.fonttype": "none", "font.size": 9}
_INCHES = (4.6, 3.0)


def expect_picture(path: Path) -> None:
    """Look whether a picture can be written to a path, before the work.

    Raises:
        UsageError: the suffix is neither .svg nor .png, the folder is missing or not writable, or
            a folder has the picture's name.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: pictures are written as {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the folder is not writable; name another")
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file")


def draw_histogram(path: Path, scores: Mapping[Statistic, Score]) -> None:
    """Histograms of the statistics under both hypotheses, a panel each, and the thresholds.

    Args:
        path: ends in .svg or .png.
        scores: what each statistic said, by its name.
    """
    with mpl.rc_context(_STYLE):
        figure = _figure(len(scores))
        for axes, (name, score) in zip(_panels(figure, len(scores)), scores.items(), strict=True):
            edges = np.histogram_bin_edges(np.concatenate([score.null, score.alternative]), BINS)
            for label, sample in (
                ("H0: own value", score.null),
                ("H1: another", score.alternative),
            ):
                counts = np.histogram(sample, edges)[0]
                axes.stairs(counts, edges, fill=True, alpha=0.6, label=label)
            axes.axvline(score.threshold.value, color="black", linewidth=1, label="threshold")
            axes.set(xlabel=name, ylabel="releases", title=f"ε ≥ {score.bound.value:.2f}")
            axes.legend(fontsize=7)
        _save(figure, path)


def draw_curves(path: Path, sweeps: Mapping[str, Sequence[Point]]) -> None:
    """Epsilon against clip and against sigma, a panel each, on a logarithmic scale.

    Args:
        path: ends in .svg or .png.
        sweeps: points by the name of what was swept.
    """
    with mpl.rc_context(_STYLE):
        figure = _figure(len(sweeps))
        for axes, (name, points) in zip(_panels(figure, len(sweeps)), sweeps.items(), strict=True):
            _curves(axes, points)
            axes.set(xlabel=name, ylabel="ε")
            axes.set_yscale("symlog", linthresh=1)
            axes.legend(fontsize=7)
        _save(figure, path)


def _curves(axes: Axes, points: Sequence[Point]) -> None:
    at = [point.at for point in points]
    for label, style, values in (
        ("theory, replace", "k--", [point.theory for point in points]),
        ("exact for the pair", "k:", [point.pair for point in points]),
        ("lower bound", "o-", [point.lower for point in points]),
    ):
        axes.plot(at, values, style, label=label, markersize=4)
    middle = np.array([point.point for point in points])
    ends = np.array([point.interval for point in points]).T
    errors = np.maximum(np.abs(ends - middle), 0)
    axes.errorbar(at, middle, errors, fmt="s", markersize=3, capsize=2, label="point estimate")


def _figure(panels: int) -> Figure:
    return Figure(figsize=(_INCHES[0] * panels, _INCHES[1]), layout="constrained")


def _panels(figure: Figure, count: int) -> Iterator[Axes]:
    yield from figure.subplots(1, count, squeeze=False)[0]


def _save(figure: Figure, path: Path) -> None:
    kind = path.suffix.lower().removeprefix(".")
    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(content, format=kind, metadata=metadata, dpi=150)
    write_atomically(path, content.getvalue())
