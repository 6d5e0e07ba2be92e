"""The report for a terminal, or as plain text: the verdict first, and again in the last line."""

import io
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from gradaudit.core.text import DOUBTED
from gradaudit.formats.base import Format, Stdout
from gradaudit.formats.page import OUTCOMES, STYLES, Column, Page, grid
from gradaudit.judging import Policy
from gradaudit.judging.risk import Level
from gradaudit.report import Report
from gradaudit.view import Cell, Concern, LayerLine, View, view
from gradaudit.view.cells import MARKS
from gradaudit.view.gaps import in_brief

PLAIN_WIDTH = 100
"""Width of the table in a file, in terminal cells."""
MOST_LAYERS = 12
MOST_CONCERNS = 3
MOST_ARRAYS = 12
LEGEND = {
    "(": "(…) permuted attribute",
    **MARKS,
    "!": "! see below",
    "–": "– not measured",
}


class Table(Format):
    """The view in as few lines as possible, or with ``every`` row behind it."""

    name = "table"
    suffix = ".txt"
    summary = "verdict, findings and a risk table for people"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The table without colours, 100 cells wide."""
        stream = io.StringIO()
        console = Console(file=stream, width=PLAIN_WIDTH, color_system=None)
        print_report(report, console, policy=policy, every=self.every)
        return stream.getvalue()

    def show(self, report: Report, policy: Policy | None = None) -> None:
        """Print the table with the width, colours and characters of the terminal."""
        print_report(report, Stdout(), policy=policy, every=self.every)


def print_report(
    report: Report, console: Console, policy: Policy | None = None, *, every: bool = False
) -> None:
    """Print the table; no name is cut or read as markup, however narrow the console."""
    page = _TablePage(view(report, policy), console, every=every)
    page.print(page.lines())


class _TablePage(Page):
    def __init__(self, shown: View, console: Console, *, every: bool) -> None:
        super().__init__(console)
        self.view = shown
        self.every = every

    def lines(self) -> Iterator[Text]:
        yield from self.first()
        first = (self.layers(), self.findings(), self.faults())
        for section in (*first, self.scope(), self.arrays(), self.gaps()):
            if lines := list(section):
                yield Text()
                yield from lines
        yield from self.provenance()
        yield from self.verdict()

    def verdict(self) -> Iterator[Text]:
        verdict = self.view.verdict
        yield from self.prose(verdict.sentence, style=OUTCOMES[verdict.outcome])

    def first(self) -> Iterator[Text]:
        """Yields the first screen, with the warnings about all numbers."""
        first = self.view.first
        yield self.text(first.title, "bold")
        for heading, text in (("date", first.date), ("model", first.model)):
            yield from self.item(heading, text, 9)
        yield from self.item("audited", first.audited, 9)
        yield Text()
        yield self.text(first.word, OUTCOMES[self.view.verdict.outcome])
        for heading, _, text in first.answers:
            yield from self.item(heading, text, 9, "bold")
        for warning in self.view.scope.warnings:
            yield from self.item("warning", warning, 9, "bold yellow")

    def scope(self) -> Iterator[Text]:
        scope = self.view.scope
        for heading, text in scope.lines:
            yield from self.item(heading, text, 9)
        for note in scope.notes:
            yield from self.item("fitted", note, 9)

    def item(self, heading: str, text: str, width: int, style: str = "dim") -> Iterator[Text]:
        """Yields a paragraph that is indented below its heading."""
        for i, line in enumerate(self.prose(text, heading.ljust(width), " " * width)):
            if i == 0:
                line.stylize(style, 0, len(heading))
            yield line

    def findings(self) -> Iterator[Text]:
        concerns = self.view.concerns
        shown = concerns if self.every else concerns[:MOST_CONCERNS]
        width = max((len(line.word) for line in shown), default=0) + 2
        for concern in shown:
            yield from self.concern(concern, width)

    def faults(self) -> Iterator[Text]:
        width = max((len(fault.level) for fault in self.view.faults), default=0) + 2
        for fault in self.view.faults:
            yield from self.item(fault.level, f"{fault.heading}: {fault.says}", width)
            repair = f"repair: {fault.repair} [{fault.place}]"
            yield from self.prose(repair, " " * width, style="dim")

    def concern(self, concern: Concern, width: int) -> Iterator[Text]:
        style = STYLES[concern.level] if concern.shown else ""
        yield from self.item(concern.word, concern.sentence, width, style)
        doubts = [f"{DOUBTED} {doubt}" for doubt in concern.doubts if doubt != concern.helps]
        indent = " " * width
        yield from self.prose("; ".join([concern.evidence, *doubts]), indent, style="dim")
        if self.every and concern.why:
            yield from self.prose(concern.why, indent, style="dim")

    @property
    def brief(self) -> bool:
        """Whether one number for each question is enough."""
        return not (self.every or self.view.alone)

    def layers(self) -> Iterator[Text]:
        layers, brief = self.view.layers, self.brief
        if not layers.measured:
            yield from self.prose(layers.tally if layers.lines else "")
            yield from self.model()
            return
        lines = layers.lines if self.every else layers.riskiest(MOST_LAYERS)
        names = Column("layer", [self.text(line.name) for line in lines])
        risks = Column("risk", [self.risk(line) for line in lines])
        others = self.answers(lines) if brief else self.metrics(lines)
        yield from grid([names], [risks, *others], self.width, self.rule)
        if len(lines) < len(layers.lines):
            more = f"the {len(lines)} riskiest are shown (--all shows all); {layers.tally}"
            yield from self.prose(more)
        if brief and layers.questions:
            yield from self.prose(self.legend(lines), style="dim")
        yield from self.doubts(brief)
        yield from self.model()

    def answers(self, lines: Sequence[LayerLine]) -> list[Column]:
        """Returns a column of numbers for each question."""
        return [
            Column(column.heading, [self.cell(line.answers[i], brief=True) for line in lines])
            for i, column in enumerate(self.view.layers.questions)
        ]

    def metrics(self, lines: Sequence[LayerLine]) -> list[Column]:
        """Returns kind, size and every headline metric with its interval."""
        return [
            Column("kind", [self.text(line.kind) for line in lines]),
            Column("parameters", [Text(line.size) for line in lines], right=True),
            *(
                Column(
                    self.safe(column.metric).replace(".", "\n", 1),
                    [self.cell(line.cells[i], brief=False) for line in lines],
                )
                for i, column in enumerate(self.view.layers.columns)
            ),
        ]

    def cell(self, cell: Cell, *, brief: bool) -> Text:
        level: Level | None = "high" if cell.failed else cell.level
        return self.text(cell.brief if brief else cell.full, STYLES[level] if level else "")

    def risk(self, line: LayerLine) -> Text:
        text = Text(line.risk)
        text.stylize(STYLES[line.sign] if line.sign else "", 0, len(line.level))
        return text

    def legend(self, lines: Sequence[LayerLine]) -> str:
        """Explains the table: each question's metric, and the marks in cells."""
        questions = [f"{x.heading} {x.metric}" for x in self.view.layers.questions]
        printed = "".join(cell.brief for line in lines for cell in line.answers)
        return "; ".join(
            [", ".join(questions), *(LEGEND[mark] for mark in LEGEND if mark in printed)]
        )

    def doubts(self, brief: bool) -> Iterator[Text]:
        for doubt in self.view.brief_doubts if brief else self.view.doubts:
            yield from self.prose(
                f"{DOUBTED} {doubt.metric}{doubt.where}: {doubt.reason}", "", "  "
            )

    def model(self) -> Iterator[Text]:
        lines = self.view.model
        if self.brief:
            lines = tuple(line for line in lines if line.question)
            metrics = ", ".join(
                " ".join(filter(None, (line.metric, line.brief, line.variant))) for line in lines
            )
            risk = f" {self.view.verdict.whole}" if self.view.verdict.whole else ""
            yield from self.prose(f"whole model{risk}: {metrics}" if lines else "", "", "  ")
        elif lines:
            yield Text()
            variants = [Column("variant", [self.text(line.variant) for line in lines])]
            yield from grid(
                [Column("whole model", [self.text(line.metric) for line in lines])],
                [
                    *(variants if any(line.variant for line in lines) else ()),
                    Column("value", [self.text(line.value) for line in lines]),
                ],
                self.width,
                self.rule,
            )
        for line in lines:
            if line.remark:
                yield from self.prose(f"{line.metric}: {line.remark}", "", "  ", style="dim")

    def arrays(self) -> Iterator[Text]:
        every = self.view.arrays
        lines = every if self.every else every[:MOST_ARRAYS]
        if not lines:
            return
        columns = {
            "type": [line.kind for line in lines],
            "norm\nbefore": [line.before for line in lines],
            "norm\nafter": [line.after for line in lines],
            "noise": [line.noise for line in lines],
            "what leaves": [line.says for line in lines],
        }
        yield from grid(
            [Column("array", [self.text(line.key) for line in lines])],
            [Column(name, list(map(self.text, cells))) for name, cells in columns.items()],
            self.width,
            self.rule,
        )
        if len(lines) < len(every):
            yield from self.prose(f"{len(lines)} of {len(every)} arrays (--all shows all)")

    def gaps(self) -> Iterator[Text]:
        if not self.every:
            if untested := in_brief(self.view.gaps):
                yield from self.prose(f"not tested: {untested}", "", "  ")
            return
        for gap in self.view.gaps:
            verb = "failed" if gap.failed else "not tested"
            yield from self.prose(f"{gap.what} {verb}{gap.where}: {gap.reason}", "", "  ")

    def provenance(self) -> Iterator[Text]:
        hidden = len(self.view.concerns) - MOST_CONCERNS
        behind = [f"{hidden} more findings"] if hidden > 0 else []
        behind += ["every metric with its interval"] if self.brief else []
        more = f"--all: {', '.join(behind)}" if behind and not self.every else ""
        rows = f"-f json: {self.view.unshown:,} more rows" if self.view.unshown else ""
        yield from self.prose(self.view.how, style="dim")
        yield from self.prose("; ".join(filter(None, (more, rows))), style="dim")
