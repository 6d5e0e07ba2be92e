"""The report as one HTML page: everything in it, nothing fetched, nothing run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from gradaudit.formats._bars import bars
from gradaudit.formats.base import Format
from gradaudit.formats.troubles import abridged
from gradaudit.formats.view import FAILED, View, view
from gradaudit.judging import Policy
from gradaudit.report import Report
from gradaudit.text import printable
from gradaudit.wording import marked, variant_text

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_ROWS = 1000
"""Rows of the list of all measurements; a sweep may have many thousands."""
_TEMPLATE = Path(__file__).with_name("page.html.jinja")


class Html(Format):
    """One self-contained page for a phone, a screen or paper.

    Every string of the report is escaped, wherever it came from.
    """

    name = "html"
    suffix = ".html"
    summary = "one page with bars and intervals, for people and for print"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The report as a page."""
        from jinja2 import Environment

        page = Environment(
            autoescape=True, finalize=_harmless, trim_blocks=True, lstrip_blocks=True
        ).from_string(_TEMPLATE.read_text(encoding="utf-8"))
        shown = view(report, policy)
        return (
            page.render(
                shown=shown,
                charts=_charts(report, shown),
                notes=[(note, _where(note.layers), note.status == FAILED) for note in shown.notes],
                checkpoints=report.target.checkpoints,
                facts={
                    "data": _flat(report.data),
                    "provenance": _flat(report.provenance),
                },
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


def _charts(report: Report, shown: View) -> "list[Markup]":
    from markupsafe import Markup

    measured: dict[str, list[Any]] = {metric: [] for metric in shown.columns}
    for row in report.measurements:
        if row.id in measured and not row.variant and row.layer and row.status == "measured":
            measured[row.id].append(row)
    return [Markup(bars(metric, rows)) for metric, rows in measured.items()]


def _where(layers: tuple[str, ...]) -> str:
    return f" in {abridged(layers)}" if layers else ""


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
    return printable(value, limit=max(len(value), 1)) if plain else value
