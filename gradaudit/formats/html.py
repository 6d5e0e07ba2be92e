"""The report as one HTML page: everything in it, nothing fetched, nothing run."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape
from pydantic import JsonValue

from gradaudit.formats.base import Format
from gradaudit.formats.strips import axis_of, ruler, shape, strip
from gradaudit.judging import Policy
from gradaudit.judging.policy import known_metrics
from gradaudit.report import Report, marked
from gradaudit.text import printable, variant_text
from gradaudit.view import MetricColumn, View, view
from gradaudit.view.signoff import sign_off

_WORDS = {
    "high, medium": "a whole interval lies beyond the limit of an error rule, of a warning rule",
    "high?, medium?": "undecided: a row is neither beyond the limit of an error rule, or of a "
    "warning rule, nor within it",
    "low": "no limit is shown to be exceeded; no proof of privacy",
    "~": "a number that no rule judged, so that it excludes nothing",
    "unknown": "something that a rule asks for could not be measured",
    "not tested": "nothing tried to learn anything from the layer's gradient",
    "[low, high]": "the interval that holds the true value at the stated confidence",
    "permuted": "the same number for the attribute shuffled among the records: what nothing is",
    "chance": "what the number is where nothing is given away",
    "game": "how many records are in the update that is attacked",
    "hidden": "a layer whose gradient is never shared",
}
MOST_EXAMPLES = 8
MOST_BYTES = 100_000
_NAME = re.compile(r"[a-z][a-z0-9-]*-\d\d\.png")
_PNG = b"\x89PNG\r\n\x1a\n"
MOST_ROWS = 1000
"""Rows of the list of all measurements; a sweep may have many thousands."""
MOST_LAYERS = 50
"""Layers of the table that are not folded away."""
MOST_STRIPS = 20
LONG_WORD = 20
"""Characters beyond which a word of a sentence is taken for a name that may be broken."""
_BREAKS = re.compile(r"([./:,]|[-_](?=\w))")
_OPTION = re.compile(r"--[a-z]")
_PAGE = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    finalize=lambda value: _harmless(value),
    trim_blocks=True,
    lstrip_blocks=True,
)


class Html(Format):
    """One self-contained page for a phone, a screen or paper.

    Every string of the report is escaped, wherever it came from.
    """

    name = "html"
    suffix = ".html"
    summary = "one page with strips and intervals, for people and for print"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The report as a page."""
        shown = view(report, policy)
        page = _PAGE.get_template("page.html.jinja").render(
            shown=shown,
            charts=_charts(shown),
            shape=shape,
            breakable=breakable,
            prose=prose,
            glossary=glossary(shown),
            signoff=sign_off(report, shown),
            examples=list(examples_of(report)),
            checkpoints=report.target.checkpoints,
            facts={"data": _flat(report.data), "provenance": _flat(report.provenance)},
            rows=[
                (row, variant_text(row.variant), marked(row) if row.status == "measured" else "")
                for row in report.rows[:MOST_ROWS]
            ],
            unlisted=max(0, len(report.rows) - MOST_ROWS),
            most_layers=MOST_LAYERS,
        )
        return f"{page}\n"


class Chart(NamedTuple):
    """Strips of one question: a name and a strip for each layer, on an axis."""

    column: MetricColumn
    ruler: Markup
    strips: Sequence[tuple[str, Markup, str]]


def _charts(shown: View) -> list[Chart]:
    """A chart for each question, of the riskiest layers."""
    lines = shown.layers.riskiest(MOST_STRIPS)
    charts = []
    for i, column in enumerate(shown.layers.questions):
        axis = axis_of(column, [line.answers[i] for line in lines])
        strips = [
            (line.name, strip(line, line.answers[i], column, axis), line.answers[i].brief)
            for line in lines
        ]
        charts.append(Chart(column, ruler(axis), strips))
    return charts


def breakable(name: str) -> Markup:
    """A name that a line may break behind its points and dashes, and nowhere inside a word."""
    parts = _BREAKS.split(printable(name, limit=None))
    return Markup("<wbr>").join(
        escape(word + mark) for word, mark in zip(parts[::2], [*parts[1::2], ""], strict=True)
    )


def prose(text: str) -> Markup:
    """A sentence whose options (``--hide``) stay whole, and whose long names break at points."""
    return Markup(" ").join(map(_word, printable(text, limit=None).split(" ")))


def _word(word: str) -> Markup:
    if _OPTION.search(word):
        return Markup('<span class="cell">{}</span>').format(word)
    return breakable(word) if len(word) > LONG_WORD else escape(word)


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


def glossary(shown: View) -> dict[str, str]:
    """The words that every report has, and the metrics that this one shows."""
    known = known_metrics()
    shown_metrics = [x.metric for x in shown.layers.columns] + [x.metric for x in shown.model]
    metrics = {
        name: f"{known[name].title}{f' ({unit})' if (unit := known[name].unit) else ''}"
        for name in dict.fromkeys(shown_metrics)
        if name in known
    }
    return {**_WORDS, **metrics}


def examples_of(report: Report) -> Iterator[tuple[str, str]]:
    """Name and ``data:`` address of each picture that still lies where the report says.

    A report names any folder it likes: only small PNG files, named as reconstructions are, are
    taken.
    """
    folder = _folder(report)
    if folder is None or not folder.is_dir():
        return
    files = [path for path in sorted(folder.glob("*.png")) if _NAME.fullmatch(path.name)]
    for path in files[:MOST_EXAMPLES]:
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= MOST_BYTES:
            content = path.read_bytes()
            if content.startswith(_PNG):
                yield path.stem, f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _folder(report: Report) -> Path | None:
    audits = report.provenance.get("audits")
    options = audits.get("attack reconstruct") if isinstance(audits, dict) else None
    folder = options.get("save_examples") if isinstance(options, dict) else None
    return Path(folder) if isinstance(folder, str) and folder else None
