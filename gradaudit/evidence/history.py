"""Follows the numbers of each layer over the reports of a folder: rounds, or versions of a model.

A change is flagged where the interval of a later report lies beyond that of the last report that
was flagged, or of the first one, so that a slow drift is flagged too. Two intervals at 95 % lie
apart by luck in 0.56 % of comparisons (2Φ(−1.96 √2)); of 20,000 simulated histories without a
change of 2, 5 and 20 reports, 0.55 to 0.58 % of the comparisons were flagged.
"""

import base64
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from gradaudit.core.files import read_file
from gradaudit.core.text import printable
from gradaudit.errors import UsageError
from gradaudit.evidence.changes import Change
from gradaudit.judging import known_metrics
from gradaudit.report import Key, Measurement, Report, estimate
from gradaudit.sweeping.curves import draw_sweep
from gradaudit.sweeping.grid import Axis, points

_MAX_BYTES = 64 << 20

BY_LUCK = 0.0056
"""Share of comparisons without a change in which two intervals at 95 % lie apart."""
MOST_METRICS = 8
"""Most metrics that a page draws."""


@dataclass(frozen=True)
class ShownChange:
    """A change that intervals show, between two reports by name."""

    before: str
    after: str
    change: Change

    def __str__(self) -> str:
        """Formats the change: ``conv1 leak.bits: worse from r1 to r3, 1 [0, 2] → 5 [4, 6]``."""
        row, old, new = self.change.row, self.change.old, self.change.new
        values = " → ".join(estimate(side) for side in (old, new) if side is not None)
        where = row.layer if row.layer is not None else "whole model"
        message = f"{self.change.direction} from {self.before} to {self.after}"
        return printable(f"{where} {row.id}: {message}, {values}", limit=None)


@dataclass(frozen=True)
class History:
    """Reports by name, in order, and the metrics that are followed.

    Attributes:
        reports: at least two, of models that share a layer.
        metric: the only metric to follow; without it all that answer a question.
    """

    reports: dict[str, Report]
    metric: str | None = None

    @cached_property
    def series(self) -> dict[Key, list[tuple[str, Measurement]]]:
        """The measured headline rows of each layer and metric, with their reports' names."""
        found: dict[Key, list[tuple[str, Measurement]]] = {}
        for name, report in self.reports.items():
            for row in report.rows:
                if row.status == "measured" and not row.variant and self._follows(row.id):
                    found.setdefault(row.key, []).append((name, row))
        return {key: rows for key, rows in found.items() if len(rows) > 1}

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that are followed, by ``audit.metric``."""
        return list(dict.fromkeys(rows[0][1].id for rows in self.series.values()))

    @cached_property
    def turns(self) -> list[ShownChange]:
        """The changes that intervals show, those for the worse first."""
        every = (turn for rows in self.series.values() for turn in _turns(rows))
        return sorted(every, key=lambda turn: turn.change.direction != "worse")

    @property
    def summary(self) -> str:
        """Counts reports, series and changes, and says how many changes luck would show."""
        worse = sum(turn.change.direction == "worse" for turn in self.turns)
        compared = sum(
            sum(row.interval is not None for _, row in rows[1:]) for rows in self.series.values()
        )
        return (
            f"{len(self.reports)} reports from {next(iter(self.reports))} to "
            f"{list(self.reports)[-1]}: intervals show {worse} changes for the worse and "
            f"{len(self.turns) - worse} for the better; luck alone would show about "
            f"{BY_LUCK * compared:.1f} of {compared} comparisons"
        )

    def merged(self) -> Report:
        """Returns one report with every headline row, as if a sweep over the reports made it."""
        numbers = [re.findall(r"\d+", name)[-1:] for name in self.reports]
        ends = [str(int(found[0])) for found in numbers if found]
        distinct = len(set(ends)) == len(self.reports)
        axis = Axis("report", tuple(ends if distinct else self.reports))
        last = list(self.reports.values())[-1]
        rows = [
            row.model_copy(update={"variant": point.variant})
            for point, report in zip(points([axis]), self.reports.values(), strict=True)
            for row in report.rows
            if not row.variant
        ]
        provenance = {**last.provenance, "sweep": {axis.name: list(axis.values)}}
        return last.model_copy(update={"measurements": rows, "provenance": provenance})

    def page(self) -> str:
        """Returns an HTML page with a picture of each metric, by layer, and the changes."""
        page = _PAGE.get_template("history.html.jinja")
        pictures = [(name, _picture(self.merged(), name)) for name in self.metrics[:MOST_METRICS]]
        return page.render(
            summary=printable(self.summary, limit=None),
            turns=list(map(str, self.turns)),
            pictures=pictures,
            left=self.metrics[MOST_METRICS:],
        )

    def _follows(self, metric: str) -> bool:
        known = known_metrics().get(metric)
        answers = known is not None and bool(known.question and known.riskier)
        return answers if self.metric is None else metric == self.metric


_PAGE = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
)


def read_history(folder: Path, metric: str | None = None) -> History:
    """Reads the reports of a folder, in the order of the numbers in their names.

    JSON files that are no reports are passed over.

    Raises:
        UsageError: a report is broken, there are fewer than two, or nothing can be followed.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: is no folder; name the one that holds the reports")
    files = sorted(folder.glob("*.json"), key=lambda path: _natural(path.name))
    reports = {path.stem: Report.from_file(path) for path in files if _is_report(path)}
    if len(reports) < 2:
        message = "a history needs two; write one of each round or version"
        raise UsageError(f"{folder}: has {len(reports)} reports, and {message}")
    history = History(reports, metric)
    if not history.series:
        what = metric or "what answers a question"
        raise UsageError(f"{folder}: {what} is not measured in two reports; name another --metric")
    return history


def _turns(rows: Sequence[tuple[str, Measurement]]) -> Iterator[ShownChange]:
    name, kept = rows[0]
    for later, row in rows[1:]:
        change = Change(kept, row)
        if change.overlap is False and change.direction is not None:
            yield ShownChange(name, later, change)
            name, kept = later, row


def _natural(name: str) -> list[tuple[int, str]]:
    """Orders names by the numbers in them: ``round-2`` before ``round-10``."""
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"([0-9]+)", name)]


def _is_report(path: Path) -> bool:
    try:
        document = json.loads(read_file(path, _MAX_BYTES))
    except (UsageError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and {"measurements", "target"} <= document.keys()


def _picture(report: Report, metric: str) -> str:
    """Returns the ``data:`` address of a picture of a metric, a panel for each layer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        draw_sweep(path, report, metric)
        return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"
