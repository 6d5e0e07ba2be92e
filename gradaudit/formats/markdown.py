"""The risk table as GitHub Markdown, fit for a pull request comment."""

import re
from collections.abc import Iterator, Sequence

from gradaudit.formats.base import Format
from gradaudit.formats.view import FAILED, View, view
from gradaudit.judging import Policy
from gradaudit.judging.risk import Level
from gradaudit.report import Report
from gradaudit.text import DOUBTED, printable

_MARKS: dict[Level, str] = {
    "high": "🔴",
    "medium": "🟠",
    "low": "🟢",
    "unknown": "⚪",
    "not tested": "⚪",
}
_PLAIN = re.compile(r"[\w ./()-]+", re.ASCII)
_ACTIVE = re.compile(
    r"[&<>|`*~#@\\$]"
    r"|\](?=[(\[:])"  # links, references and their definitions
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis; a_b has none
    r"|(?<=www)\.|:(?=//)"  # bare addresses
)


class Markdown(Format):
    """Tables and lists; whatever a name holds, it stays text."""

    name = "markdown"
    suffix = ".md"
    summary = "GitHub Markdown, fit for a pull request comment"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The report as Markdown."""
        return _document(view(report, policy))


def escape(text: str) -> str:
    """Text that Markdown and HTML leave as it is, on one line.

    Active characters become entities, which can never be read as markup.
    """
    return _ACTIVE.sub(lambda m: f"&#{ord(m[0])};", printable(text, limit=None))


def code(name: str) -> str:
    """A name in code type; entities spell what a code span could not hold in a table."""
    if _PLAIN.fullmatch(name):
        return f"`{name.strip() or ' '}`"
    spelled = re.sub(r"[^\w ./()-]", lambda m: f"&#{ord(m[0])};", printable(name, limit=None))
    return f"<code>{spelled.replace('_', '&#95;')}</code>" if name else ""


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: int = 0) -> Iterator[str]:
    """Lines of a table whose cells are Markdown already; ``right`` is aligned to the right."""
    yield f"| {' | '.join(headings)} |"
    rules = ["---:" if right and i == right else "---" for i in range(len(headings))]
    yield f"| {' | '.join(rules)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _document(shown: View) -> str:
    paragraphs = [
        f"## Gradient leakage: {shown.tally}",
        escape(shown.title),
        escape(shown.data),
        *(f"Checkpoint: {escape(note)}" for note in shown.checkpoint_notes),
        *(f"> **Warning:** {escape(warning)}" for warning in shown.warnings),
        *("\n".join(part(shown)) for part in (_layers, _model, _doubts, _troubles, _notes)),
        f"<sub>{escape(shown.how)}</sub>",
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def _layers(shown: View) -> Iterator[str]:
    if shown.layers:
        yield from table(
            ["layer", "risk", "kind", "parameters", *map(code, shown.columns)],
            [
                [
                    code(line.name),
                    f"{_MARKS[line.level]} {line.risk}",
                    escape(line.kind),
                    line.size,
                    *line.cells,
                ]
                for line in shown.layers
            ],
            right=3,
        )


def _model(shown: View) -> Iterator[str]:
    if shown.model:
        yield from table(
            ["whole model", "variant", "value"],
            [[code(x.metric), escape(x.variant), x.value] for x in shown.model],
        )
    remarked = [line for line in shown.model if line.remark]
    if remarked:
        yield ""
        yield from (f"- {code(line.metric)}: {escape(line.remark)}" for line in remarked)


def _doubts(shown: View) -> Iterator[str]:
    for doubt in shown.doubts:
        yield f"- {DOUBTED} {code(doubt.what)}{escape(doubt.where)}: {escape(doubt.reason)}"


def _troubles(shown: View) -> Iterator[str]:
    for trouble in shown.troubles:
        why = f"<br>{escape(trouble.why)}" if trouble.why else ""
        mark = f"{_MARKS[trouble.level]} " if trouble.shown else ""
        yield f"- {mark}**{trouble.word}** {escape(trouble.sentence)}{why}"


def _notes(shown: View) -> Iterator[str]:
    for note in shown.notes:
        verb = "failed" if note.status == FAILED else "not measured"
        yield f"- {code(note.what)} {verb}{escape(note.where)}: {escape(note.reason)}"
