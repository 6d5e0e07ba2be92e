"""Bars of one metric over the layers, with intervals, as an SVG to stand inside a page."""

import io
import re
import warnings
from collections.abc import Sequence
from html import escape
from typing import Any

from gradaudit.report import Measurement
from gradaudit.text import printable
from gradaudit.wording import number

_WIDE = 1000
"""Values that span such a factor are drawn on a logarithmic axis."""
_ENTRY_INCHES, _FRAME_INCHES, _WIDTH_INCHES = 0.26, 0.75, 6.4
_BAR, _ENDS = "#4878a8", "#202020"
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_ONLY_NAMES = re.compile(r'<g id="[^"]*">')
_STYLE_OF_ALL = re.compile(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", re.DOTALL)


def bars(metric: str, rows: Sequence[Measurement]) -> str:
    """One horizontal bar a layer, from the top, with its interval; an ``<svg>`` element.

    The same rows give the same characters. Names are text in it, never markup or formulas.

    Args:
        metric: ``audit.metric``.
        rows: measured rows, each of a layer.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = {
        "svg.hashsalt": metric,
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.family": "sans-serif",
        "font.size": 9,
    }
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fonts, which are the reader's, and of huge axes
        inches = (_WIDTH_INCHES, _FRAME_INCHES + _ENTRY_INCHES * len(rows))
        figure = Figure(figsize=inches, layout="constrained")
        _draw(figure.subplots(), metric, rows)
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata=_NO_METADATA, transparent=True)
    return _inline(content.getvalue(), metric)


def _draw(axes: Any, metric: str, rows: Sequence[Measurement]) -> None:
    finite = [row.value for row in rows if row.value is not None]
    places = range(len(rows))
    values = [0.0 if row.value is None else row.value for row in rows]
    axes.barh(places, values, height=0.6, color=_BAR)
    for place, row in enumerate(rows):
        if row.interval is not None:
            axes.plot(row.interval, (place, place), "|-", color=_ENDS, markersize=5, linewidth=1)
        if row.infinite:
            axes.text(0.01, place, "infinite", transform=axes.get_yaxis_transform(), va="center")
    if finite and min(finite) > 0 and max(finite) >= _WIDE * min(finite):
        axes.set_xscale("log")
    axes.set_yticks(places, [printable(row.layer or "", limit=40) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    units = {row.unit for row in rows if row.unit}
    axes.set_xlabel(printable(f"{metric} ({', '.join(sorted(units))})" if units else metric))
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    axes.spines[["top", "right"]].set_visible(False)


def _inline(document: str, metric: str) -> str:
    """The ``<svg>`` without prologue, ids that nothing refers to, and rules for the whole page."""
    svg = document[document.index("<svg") :].rstrip()
    svg = _ONLY_NAMES.sub("<g>", _STYLE_OF_ALL.sub("", svg))
    label = escape(printable(f"{metric} by layer"))
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
