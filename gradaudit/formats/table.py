"""The report for a terminal, or as plain text: the verdict first."""

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from gradaudit.core.text import DOUBTED
from gradaudit.formats.base import Format, Stdout
from gradaudit.formats.page import OUTCOMES, STYLES, Column, Page, grid
from gradaudit.judging import Policy
from gradaudit.judging.risk import Level
from gradaudit.report import Report
from gradaudit.view import Cell, Concern, LayerLine, View, view
from gradaudit.view.summary import advice

PLAIN_WIDTH = 100
"""Width of the table in a file, in terminal cells."""
MOST_LAYERS = 12
MOST_FINDINGS, MOST_SHOWN = 4, 3
"""Most findings in all, and of those that are shown where others are open."""
MOST_ARRAYS = 12
INDENT = 9


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
        first = (self.findings(), self.faults(), self.job(), self.layers())
        for section in (*first, self.summary(), self.arrays()):
            if lines := list(section):
                yield Text()
                yield from lines
        yield from self.details()

    def first(self) -> Iterator[Text]:
        """Yields the verdict, what was audited, and the warnings about all numbers."""
        summary = self.view.summary
        yield self.text(summary.word, OUTCOMES[self.view.verdict.outcome])
        yield from self.prose(summary.subject, style="dim")
        for heading, text in self.view.scope.changes:
            yield from self.item(heading, text, INDENT)
        for warning in self.view.scope.warnings:
            yield from self.item("warning", warning, INDENT, "bold yellow")

    def item(self, heading: str, text: str, width: int, style: str = "dim") -> Iterator[Text]:
        """Yields a paragraph that is indented below its heading."""
        for i, line in enumerate(self.prose(text, heading.ljust(width), " " * width)):
            if i == 0:
                line.stylize(style, 0, len(heading))
            yield line

    def findings(self) -> Iterator[Text]:
        """Yields the findings, the gravest first, each above its evidence and limit."""
        every = self.view.findings
        shown = every if self.every else self.first_findings()
        left = Counter(x.severity for x in every if x not in shown)
        more = ", ".join(f"{count} {severity}" for severity, count in left.items())
        if shown:
            yield Text("Findings", "bold").append(f"  (--all: {more} more)" if more else "", "dim")
        for concern in shown:
            yield from self.finding(concern)

    def faults(self) -> Iterator[Text]:
        width = max((len(fault.level) for fault in self.view.faults), default=0) + 2
        for fault in self.view.faults:
            yield from self.item(fault.level, f"{fault.heading}: {fault.says}", width)
            repair = f"repair: {fault.repair} [{fault.place}]"
            yield from self.prose(repair, " " * width, style="dim")

    def job(self) -> Iterator[Text]:
        """Yields the chains and epsilons of a federated job."""
        for line in self.view.job:
            yield from self.prose(line, "", "  ")

    def first_findings(self) -> Sequence[Concern]:
        """Returns the gravest findings; where there are open ones, one or more of them."""
        every = self.view.findings
        shown = [x for x in every if x.severity != "OPEN"]
        open_ = [x for x in every if x.severity == "OPEN"]
        most = max(MOST_FINDINGS - len(open_), MOST_SHOWN)
        first = [*shown[:most], *open_[: max(MOST_FINDINGS - len(shown), MOST_FINDINGS - most)]]
        return [x for x in every if x in first]

    def finding(self, concern: Concern) -> Iterator[Text]:
        style = STYLES[concern.level] if concern.shown else "yellow"
        where = f"  {concern.where}" if concern.where else ""
        yield from self.item(concern.severity, concern.sentence + where, INDENT, style)
        limit = f"limit {concern.limit}" if concern.limit else ""
        floor = concern.floor if self.every else ""
        indent = " " * INDENT
        parts = (concern.evidence, limit, floor, concern.settles)
        if text := "; ".join(filter(None, parts)):
            yield from self.prose(text, indent, style="dim")
        if self.every:
            doubts = [f"{DOUBTED} {doubt}" for doubt in concern.doubts]
            helps = f"helps: {concern.helps}" if concern.helps else ""
            for more in filter(None, (concern.why, helps, *doubts)):
                yield from self.prose(more, indent, style="dim")

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
        names = Column("Layers", [self.text(line.name) for line in lines])
        risks = Column("severity", [self.severity(line) for line in lines])
        others = self.answers(lines) if brief else self.metrics(lines)
        yield from grid([names], [risks, *others], self.width, self.rule)
        if len(lines) < len(layers.lines):
            more = f"the {len(lines)} riskiest are shown (--all shows all); {layers.tally}"
            yield from self.prose(more)
        if not brief:
            yield from self.doubts()
            yield from self.model()

    def answers(self, lines: Sequence[LayerLine]) -> list[Column]:
        """Returns a column of numbers for each question."""
        return [
            Column(
                "\n".join(map(self.safe, column.heading)),
                [self.cell(line.answers[i], brief=True) for line in lines],
            )
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

    def severity(self, line: LayerLine) -> Text:
        text = self.text(line.severity)
        text.stylize(STYLES[line.sign] if line.sign else "", 0, len(line.severity.split()[0]))
        return text

    def doubts(self) -> Iterator[Text]:
        for doubt in self.view.doubts:
            yield from self.prose(
                f"{DOUBTED} {doubt.metric}{doubt.where}: {doubt.reason}", "", "  "
            )

    def model(self) -> Iterator[Text]:
        """Yields the numbers of the whole model."""
        lines = self.view.model
        if not lines:
            return
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

    def summary(self) -> Iterator[Text]:
        """Yields advice on the findings above, assumptions, gaps; with every row scope, reasons."""
        summary = self.view.summary
        if not self.every:
            first = self.first_findings()
            told = [x for x in self.view.concerns if x in first or not x.shown]
            summary = replace(summary, do=advice(self.view.verdict, told))
        for heading, text in summary.sections:
            yield from self.item(heading, text, 12, "bold")
        if not self.every:
            return
        for gap in self.view.gaps:
            verb = "failed" if gap.failed else "not tested"
            yield from self.prose(f"{gap.what} {verb}{gap.where}: {gap.reason}", "  ", "    ")
        for heading, text in self.view.scope.lines:
            yield from self.item(f"  {heading}", text, 2 + INDENT)

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

    def details(self) -> Iterator[Text]:
        more = "--all: the rest" if self.brief or (self.view.unshown and not self.every) else ""
        yield from self.prose("; ".join(filter(None, (self.view.how, more))), style="dim")
