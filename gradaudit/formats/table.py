"""The risk table for a terminal, or as plain text: layer by layer, then why, then what next."""

import io
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from gradaudit.formats.base import Format, Stdout
from gradaudit.formats.page import STYLES, Column, Page, grid
from gradaudit.formats.view import FAILED, LayerLine, View, view
from gradaudit.judging import Policy
from gradaudit.report import Report
from gradaudit.text import DOUBTED

PLAIN_WIDTH = 100
"""Terminal cells of a line where the table goes to a file."""


class Table(Format):
    """One line a layer with its risk in colour and in words."""

    name = "table"
    suffix = ".txt"
    summary = "risk levels, numbers and reasons for people"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The table without colours, 100 cells wide."""
        stream = io.StringIO()
        print_report(
            report, Console(file=stream, width=PLAIN_WIDTH, color_system=None), policy=policy
        )
        return stream.getvalue()

    def show(self, report: Report, policy: Policy | None = None) -> None:
        """The table as the terminal can show it: its width, colours and characters."""
        print_report(report, Stdout(), policy=policy)


def print_report(report: Report, console: Console, policy: Policy | None = None) -> None:
    """Print the table; no name is cut or read as markup, however narrow the console."""
    page = _TablePage(view(report, policy), console)
    page.print(page.lines())


class _TablePage(Page):
    def __init__(self, shown: View, console: Console) -> None:
        super().__init__(console)
        self.view = shown

    def lines(self) -> Iterator[Text]:
        yield from self.prose(self.view.title, style="bold")
        yield from self.prose(self.view.data)
        for note in self.view.checkpoint_notes:
            yield from self.prose(note, "checkpoint: ", "  ", style="dim")
        for warning in self.view.warnings:
            yield from self.prose(warning, "warning: ", "  ", style="bold yellow")
        sections = (self.layers(), self.model(), self.doubts(), self.troubles(), self.notes())
        for section in (*sections, self.end()):
            lines = list(section)
            if lines:
                yield Text()
                yield from lines

    def layers(self) -> Iterator[Text]:
        lines = self.view.layers
        if not lines:
            return
        names = Column("layer", [self.text(line.name) for line in lines])
        others = [
            Column("risk", [self.risk(line) for line in lines]),
            Column("kind", [self.text(line.kind) for line in lines]),
            Column("parameters", [Text(line.size) for line in lines], right=True),
            *(
                Column(
                    self.safe(metric).replace(".", "\n", 1), [self.cell(line, i) for line in lines]
                )
                for i, metric in enumerate(self.view.columns)
            ),
        ]
        yield from grid(names, others, self.width, self.rule)
        yield Text()
        yield from self.prose(f"risk: {self.view.tally}")

    def model(self) -> Iterator[Text]:
        lines = self.view.model
        if lines:
            variants = [Column("variant", [self.text(line.variant) for line in lines])]
            yield from grid(
                Column("whole model", [self.text(line.metric) for line in lines]),
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

    def risk(self, line: LayerLine) -> Text:
        text = Text(line.risk)
        text.stylize(STYLES[line.level], 0, len(line.level))
        return text

    def doubts(self) -> Iterator[Text]:
        for doubt in self.view.doubts:
            told = f"{DOUBTED} {doubt.what}{doubt.where}: {doubt.reason}"
            yield from self.prose(told, "", "  ")

    def troubles(self) -> Iterator[Text]:
        for trouble in self.view.troubles:
            level = f"{trouble.word:<8}"
            for i, line in enumerate(self.prose(trouble.sentence, level, " " * len(level))):
                if i == 0:
                    line.stylize(STYLES[trouble.level] if trouble.shown else "", 0, len(level))
                yield line
            yield from self.prose(trouble.why, " " * len(level), style="dim")

    def notes(self) -> Iterator[Text]:
        for note in self.view.notes:
            verb = "failed" if note.status == FAILED else "not measured"
            yield from self.prose(f"{note.what} {verb}{note.where}: {note.reason}", "", "  ")

    def end(self) -> Iterator[Text]:
        yield from self.prose(self.view.how, style="dim")
        if self.view.unshown:
            rows = f"{self.view.unshown:,} more measured rows are in the JSON report (-f json)"
            yield from self.prose(rows, style="dim")
        yield from self.prose(
            "To judge a saved report in CI: gradaudit gate REPORT.json --policy POLICY.yaml; "
            "gradaudit gate --print-default-policy prints the limits used without one",
            style="dim",
        )

    def cell(self, line: LayerLine, column: int) -> Text:
        return self.text(line.cells[column], "bold red" if line.cells[column] == FAILED else "")
