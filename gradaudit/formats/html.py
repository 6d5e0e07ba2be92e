"""The report as one HTML page: everything in it, nothing fetched, nothing run."""

import io
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from pydantic import JsonValue

from gradaudit.formats.base import Format
from gradaudit.formats.view import FAILED, view
from gradaudit.judging import Policy
from gradaudit.report import Measurement, Report
from gradaudit.text import marked, number, printable, variant_text

MOST_ROWS = 1000
"""Rows of the list of all measurements; a sweep may have many thousands."""
_TEMPLATE = Path(__file__).with_name("page.html.jinja")
_WIDE = 1000
"""Values that span such a factor are drawn on a logarithmic axis."""
_ENTRY_INCHES, _FRAME_INCHES, _WIDTH_INCHES = 0.26, 0.75, 6.4
_BAR, _ENDS = "#4878a8", "#202020"
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_ONLY_NAMES = re.compile(r'<g id="[^"]*">')
_STYLE_OF_ALL = re.compile(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", re.DOTALL)


class Html(Format):
    """One self-contained page for a phone, a screen or paper.

    Every string of the report is escaped, wherever it came from.
    """

    name = "html"
    suffix = ".html"
    summary = "one page with bars and intervals, for people and for print"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The report as a page."""
        page = Environment(
            autoescape=True, finalize=_harmless, trim_blocks=True, lstrip_blocks=True
        ).from_string(_TEMPLATE.read_text(encoding="utf-8"))
        shown = view(report, policy)
        headlines = [
            row
            for row in report.measurements
            if not row.variant and row.layer and row.status == "measured"
        ]
        return (
            page.render(
                shown=shown,
                charts=[
                    Markup(bars(metric, [row for row in headlines if row.id == metric]))
                    for metric in shown.columns
                ],
                notes=[(note, note.where, note.status == FAILED) for note in shown.notes],
                checkpoints=report.target.checkpoints,
                facts={"data": _flat(report.data), "provenance": _flat(report.provenance)},
                rows=[
                    (
                        row,
                        variant_text(row.variant),
                        marked(row) if row.status == "measured" else "",
                    )
                    for row in report.measurements[:MOST_ROWS]
                ],
                unlisted=max(0, len(report.measurements) - MOST_ROWS),
            )
            + "\n"
        )


def _flat(facts: Mapping[str, JsonValue], prefix: str = "") -> dict[str, str]:
    """Facts as lines: ``versions.torch`` to its value; lists and what is empty as JSON."""
    lines: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            lines |= _flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines[prefix + key] = text
    return lines


def _harmless(value: Any) -> Any:
    """Text without control characters; what is markup already stays."""
    plain = isinstance(value, str) and not hasattr(value, "__html__")
    return printable(value, limit=None) if plain else value


def bars(metric: str, rows: Sequence[Measurement]) -> str:
    """One horizontal bar a layer, from the top, with its interval; an ``<svg>`` element.

    The same rows give the same characters. Names are text in it, never markup or formulas.
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
