"""Prints, saves and shows a report: at a glance, as a table of pandas, or in any format."""

from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from gradaudit.core.text import printable
from gradaudit.formats import format_for
from gradaudit.formats.results import summary
from gradaudit.formats.tidy import columns, lines
from gradaudit.judging.risk import LEVELS, Risk, risks_of, with_findings
from gradaudit.report import Report

if TYPE_CHECKING:
    from pandas import DataFrame


def dataframe(report: Report) -> "DataFrame":
    """Return the lines of the CSV file as a table of pandas."""
    import pandas

    frame: DataFrame = pandas.DataFrame(lines(report), columns=columns(report))
    return frame


MOST_LAYERS = 6
_COLOURS = {"high": "#b3261e", "medium": "#9a6700", "low": "#1a7f37"}

_GREY = "#6e6e6e"

LayerRisk = tuple[str, Risk]


def glance(report: Report) -> str:
    """The subject, the verdict and the riskiest layers, in at most ten lines."""
    layers = _riskiest(report)
    width = max((len(name) for name, _ in layers), default=0)
    shown = [_title(report), *_facts(report)]
    shown += [f"  {name:<{width}}  {risk}" for name, risk in layers[:MOST_LAYERS]]
    if len(layers) > MOST_LAYERS:
        shown.append(f"  … and {len(layers) - MOST_LAYERS} layers that are no riskier")
    return "\n".join(shown)


def notebook(report: Report) -> str:
    """Returns subject, verdict and every layer as HTML without style sheets or scripts."""
    rows = "".join(
        f"<tr><th scope='row' style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left;color:{_COLOURS.get(risk.sign or '', _GREY)}'>"
        f"{escape(str(risk))}</td></tr>"
        for name, risk in _riskiest(report)
    )
    facts = "".join(f"<p>{escape(line)}</p>" for line in (_title(report), *_facts(report)))
    return f"<div>{facts}<table><tbody>{rows}</tbody></table></div>"


def _title(report: Report) -> str:
    target = report.target
    size = f"{target.parameters:,} parameters in {len(target.layers)} layers"
    return f"gradaudit report of {printable(target.model)}, {size}"


def _facts(report: Report) -> Iterator[str]:
    counts = Counter[str](row.status for row in report.rows)
    shown = ("measured", "skipped", "failed")
    yield ", ".join(f"{counts[word]} rows {word}" for word in shown if counts[word]) or "no rows"
    yield summary(with_findings(report))


def _riskiest(report: Report) -> list[LayerRisk]:
    """Layers with their risk, the riskiest first, and as they come in the model."""
    risks = risks_of(with_findings(report))
    lines = [(printable(name), risk) for name, risk in risks.items() if name is not None]
    return sorted(lines, key=lambda line: LEVELS.index(line[1].level))


__all__ = ["dataframe", "glance", "notebook", "save"]


def save(report: Report, path: Path) -> None:
    """Write the report whole or not at all, in the format of the file's suffix.

    Raises:
        UsageError: no format has this suffix, or the file cannot be written.
    """
    format_for(path).write(report, path)
