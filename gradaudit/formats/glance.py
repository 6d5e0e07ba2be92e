"""A report at a glance, for whoever types its name: ten lines of text, or a table of a notebook."""

from collections import Counter
from collections.abc import Iterator
from html import escape

from gradaudit.formats.results import summary
from gradaudit.judging.risk import LEVELS, Risk, risks_of, sign_of, with_findings
from gradaudit.report import Report
from gradaudit.text import printable

MOST_LAYERS = 6
_COLOURS = {"high": "#b3261e", "medium": "#9a6700", "low": "#1a7f37"}

_GREY = "#6e6e6e"

Line = tuple[str, Risk]


def glance(report: Report) -> str:
    """The subject, the verdict and the riskiest layers, in at most ten lines."""
    layers = _riskiest(report)
    width = max((len(name) for name, _ in layers), default=0)
    lines = [_title(report), *_facts(report)]
    lines += [f"  {name:<{width}}  {risk}" for name, risk in layers[:MOST_LAYERS]]
    if len(layers) > MOST_LAYERS:
        lines.append(f"  … and {len(layers) - MOST_LAYERS} layers that are no riskier")
    return "\n".join(lines)


def notebook(report: Report) -> str:
    """The same as HTML without style sheets or scripts, with every layer."""
    rows = "".join(
        f"<tr><th scope='row' style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left;color:{_colour(risk)}'>"
        f"{escape(str(risk))}</td></tr>"
        for name, risk in _riskiest(report)
    )
    said = "".join(f"<p>{escape(line)}</p>" for line in (_title(report), *_facts(report)))
    return f"<div>{said}<table><tbody>{rows}</tbody></table></div>"


def _colour(risk: Risk) -> str:
    return _COLOURS.get(sign_of(risk.level, risk.possible) or "", _GREY)


def _title(report: Report) -> str:
    target = report.target
    size = f"{target.parameters:,} parameters in {len(target.layers)} layers"
    return f"gradaudit report of {printable(target.model)}, {size}"


def _facts(report: Report) -> Iterator[str]:
    counts = Counter[str](row.status for row in report.measurements)
    shown = ("measured", "skipped", "failed")
    yield ", ".join(f"{counts[word]} rows {word}" for word in shown if counts[word]) or "no rows"
    yield summary(with_findings(report))


def _riskiest(report: Report) -> list[Line]:
    """Layers with their risk, the riskiest first, and as they come in the model."""
    risks = risks_of(with_findings(report))
    lines = [(printable(name), risk) for name, risk in risks.items() if name is not None]
    return sorted(lines, key=lambda line: LEVELS.index(line[1].level))
