"""The report as GitHub Markdown, fit for a pull request comment of any model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradaudit.core.text import DOUBTED, markdown_code, markdown_escape, markdown_table
from gradaudit.core.text import markdown_paragraph as _text
from gradaudit.formats.base import Format
from gradaudit.judging import Policy, Word
from gradaudit.judging.risk import Level
from gradaudit.report import Report
from gradaudit.view import ArrayLine, Concern, LayerLine, MetricColumn, UnmeasuredPart, View, view

MOST_BYTES = 60_000
"""Most bytes of a document; GitHub takes 65,536 characters in a comment."""
MOST_LAYERS = 10
MOST_FINDINGS = 8
_MARKS: dict[Level, str] = {
    "high": "🔴",
    "medium": "🟠",
    "low": "🟢",
    "unknown": "⚪",
    "not tested": "⚪",
}
_OUTCOMES: dict[Word, str] = {"passed": "✅", "failed": "❌", "undecided": "❓", "measured": "⚪"}
_NO_SIGN = "⚪"
LEFT_OUT = "*{:,} more rows are left out; the JSON report has them.*"
_ROOM = 100
"""Bytes that are reserved for the note on what was left out."""


@dataclass(frozen=True)
class Block:
    """Lines that belong together; ``rows`` may be cut, the lines around them may not.

    A block that ``needed`` rows is left out where it has none.
    """

    opening: Sequence[str]
    rows: Sequence[str] = ()
    closing: Sequence[str] = ()
    needed: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to say."""
        return not self.rows and (self.needed or not self.opening)


def filled(blocks: Sequence[Block], most: int) -> Iterator[str]:
    """Joins the blocks with empty lines, and cuts rows to stay within so many bytes.

    No block takes more than half of what is left, so that each has some of its rows; those that
    are left out are counted.
    """
    left = most
    for block in blocks:
        if block.empty:
            continue
        paragraph = "\n".join(_fitting(block, (left - _ROOM) // 2))
        size = _size(paragraph) + 1
        if size <= left:
            left -= size
            yield paragraph


def _fitting(block: Block, room: int) -> list[str]:
    used = sum(map(_size, (*block.opening, *block.closing)))
    rows: list[str] = []
    for row in block.rows:
        used += _size(row)
        if used > room:
            break
        rows.append(row)
    cut = len(block.rows) - len(rows)
    note = ["", LEFT_OUT.format(cut)] if cut else []
    return [*block.opening, *rows, *block.closing, *note]


def _size(line: str) -> int:
    return len(line.encode()) + 1


class Markdown(Format):
    """Tables and lists, in which every name stays plain text."""

    name = "markdown"
    suffix = ".md"
    summary = "GitHub Markdown, fit for a pull request comment"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The report as Markdown, of less than ``MOST_BYTES``."""
        shown = view(report, policy)
        last = f"**{_text(shown.verdict.sentence)}**"
        blocks = [*_summary(shown), *_details(shown)]
        return "\n\n".join([*filled(blocks, MOST_BYTES - len(last.encode()) - 3), last]) + "\n"


def _summary(shown: View) -> Iterator[Block]:
    """Yields the first part: verdict, findings, layers, advice, assumptions, gaps."""
    verdict, summary = shown.verdict, shown.summary
    yield Block(
        [f"## {_OUTCOMES[verdict.outcome]} {_text(summary.word)}", "", _text(summary.subject)]
    )
    changes = shown.scope.changes
    yield Block([], [f"- **{heading}** {_text(text)}" for heading, text in changes])
    for warning in shown.scope.warnings:
        yield Block([f"> **Warning:** {_text(warning)}"])
    opening, lines = _findings(shown.findings[:MOST_FINDINGS])
    yield Block(["### Findings", "", *opening], lines, needed=True)
    if shown.sweep:
        settings = [
            [_text(x.setting), f"{_OUTCOMES[x.word]} {x.word.upper()}", _text(x.worst)]
            for x in shown.sweep.lines
        ]
        opening, rest = _table(["setting", f"verdict by {shown.sweep.policy}", "gravest"], settings)
        yield Block(["### Settings", "", *opening], rest, needed=True)
    faults = [f"- **{x.level}** {_text(x.sentence)}" for x in shown.faults]
    yield Block(["### Faults of the job", ""], faults, needed=True)
    job = [f"- {_text(line)}" for line in shown.job]
    yield Block(["### Chains and epsilon of the job", ""], job, needed=True)
    yield _riskiest(shown)
    for heading, text in summary.sections:
        yield Block([f"### {heading}", "", _text(text)])
    yield Block(["### Provenance", "", _text(shown.how)])


def _riskiest(shown: View) -> Block:
    lines, every = shown.layers.riskiest(MOST_LAYERS), shown.layers.lines
    if lines and not shown.layers.measured:
        return Block(["### Layers", "", f"{shown.layers.tally.capitalize()}."])
    some = f", the {len(lines)} riskiest of {len(every):,}" if len(lines) < len(every) else ""
    opening, rows = _answers(lines, shown.layers.questions)
    return Block([f"### Layers{some}", "", *opening], rows, needed=True)


def _details(shown: View) -> Iterator[Block]:
    more = shown.findings[MOST_FINDINGS:]
    yield _folded(f"{len(more)} more findings", *_findings(more))
    layers = shown.layers
    lines = layers.lines if layers.measured else ()
    yield _folded(f"All {len(lines):,} layers", *_metrics(lines, layers.columns))
    model = [
        [markdown_code(x.metric), markdown_escape(x.variant), x.value, markdown_escape(x.remark)]
        for x in shown.model
    ]
    yield _folded("Whole model", *_table(["metric", "variant", "value", "remark"], model))
    yield _folded(f"All {len(shown.arrays):,} arrays of the update", *_arrays(shown.arrays))
    scope = [f"- **{heading}** {_text(text)}" for heading, text in shown.scope.lines]
    yield _folded("Scope", [], scope)
    gaps = [gap for gap in shown.gaps if gap.partial or gap.reason != gap.short]
    yield _folded("Not tested, and why", [], list(map(_gap, gaps)))
    doubts = [
        f"- {DOUBTED} {markdown_code(x.metric)}{markdown_escape(f'{x.where}: {x.reason}')}"
        for x in shown.doubts
    ]
    yield _folded("Doubts", [], doubts)


def _folded(summary: str, opening: Sequence[str], rows: Sequence[str]) -> Block:
    opened = [f"<details><summary>{summary}</summary>", "", *opening]
    return Block(opened, rows, ["", "</details>"], needed=True)


def _findings(concerns: Sequence[Concern]) -> tuple[list[str], list[str]]:
    """Returns the table of findings; what settles an open one stands below its evidence."""
    rows = []
    for x in concerns:
        evidence = "<br>".join(map(_text, filter(None, (x.evidence, x.settles))))
        mark = _MARKS[x.level] if x.shown else _NO_SIGN
        rows.append([f"{mark} {x.severity}", _text(x.sentence), evidence, x.limit, _text(x.where)])
    return _table(["severity", "finding", "evidence", "limit", "layers"], rows)


def _gap(gap: UnmeasuredPart) -> str:
    verb = "failed" if gap.failed else "not tested"
    return f"- {_text(gap.what)} {verb}{_text(gap.where)}: {_text(gap.reason)}"


def _answers(
    lines: Sequence[LayerLine], questions: Sequence[MetricColumn]
) -> tuple[list[str], list[str]]:
    """Returns the table of layers, with one number for each question."""
    headings = ["<br>".join(map(markdown_escape, x.heading)) for x in questions]
    rows = [
        [
            markdown_code(line.name),
            f"{_MARKS[line.sign] if line.sign else _NO_SIGN} {line.severity}",
            *(x.brief for x in line.answers),
        ]
        for line in lines
    ]
    return _table(["layer", "severity", *headings], rows)


def _metrics(
    lines: Sequence[LayerLine], columns: Sequence[MetricColumn]
) -> tuple[list[str], list[str]]:
    headings = [
        "layer",
        "severity",
        "kind",
        "parameters",
        *(markdown_code(x.metric) for x in columns),
    ]
    rows = []
    for x in lines:
        numbers = (cell.full for cell in x.cells)
        rows.append([markdown_code(x.name), x.severity, markdown_escape(x.kind), x.size, *numbers])
    return _table(headings, rows, right=3)


def _arrays(lines: Sequence[ArrayLine]) -> tuple[list[str], list[str]]:
    rows = []
    for x in lines:
        kind, says = map(markdown_escape, (x.kind, x.says))
        rows.append([markdown_code(x.key), kind, x.before, x.after, x.noise, says])
    return _table(["array", "type", "norm before", "after", "noise", "what leaves"], rows)


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], right: int = 0
) -> tuple[list[str], list[str]]:
    """Returns heading lines and rows; empty without rows."""
    lines = list(markdown_table(headings, rows, right)) if rows else []
    return lines[:2], lines[2:]
