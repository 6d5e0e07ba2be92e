"""Layer by layer: the risk, one number for each question, and behind them every headline metric."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradaudit.audits import Audit, audits
from gradaudit.judging.risk import BEYOND, LEVELS
from gradaudit.report import Report
from gradaudit.view.cells import HEADINGS, LayerLine, MetricColumn
from gradaudit.view.lookup import Lookup


@dataclass(frozen=True)
class Layers:
    """The layers in the model's order, with what they are compared by."""

    questions: tuple[MetricColumn, ...] = ()
    columns: tuple[MetricColumn, ...] = ()
    lines: tuple[LayerLine, ...] = ()
    ranks: tuple[int, ...] = field(default=(), repr=False)
    """Places of the lines from the riskiest on."""

    def riskiest(self, most: int) -> tuple[LayerLine, ...]:
        """So many of the riskiest, the riskiest first; all in the model's order where they fit."""
        if len(self.lines) <= most:
            return self.lines
        return tuple(self.lines[place] for place in self.ranks[:most])

    @property
    def tally(self) -> str:
        """How many layers have each risk: ``2 high, 1 low of 3 layers; high not excluded in 1``."""
        levels = Counter(line.level for line in self.lines)
        counts = ", ".join(f"{levels[level]} {level}" for level in LEVELS if levels[level])
        left = Counter(line.possible for line in self.lines)
        more = [f"; {level} not excluded in {left[level]}" for level in LEVELS if left[level]]
        return f"{counts} of {len(self.lines)} layers{''.join(more)}"


def layers_of(judged: Report) -> Layers:
    """The layers of a judged report.

    A report of one audit shows all its metrics behind the questions; one of several shows the
    headline metrics of each. A column without any number is left out.
    """
    lookup = Lookup.of(judged)
    columns = tuple(
        lookup.column(metric) for metric in chosen_metrics(judged) if lookup.has(metric)
    )
    questions = tuple(_questions(columns))
    lines = tuple(lookup.lines(judged, questions, columns))
    return Layers(questions, columns, lines, _ranks(lines, judged))


def chosen_metrics(report: Report) -> dict[str, None]:
    """Ids of the metrics worth a column, in order."""
    present: dict[str, dict[str, None]] = {}
    for row in report.measurements:
        present.setdefault(row.audit, {})[row.metric] = None
    return {
        f"{audit}.{metric}": None
        for audit, metrics in present.items()
        for metric in (_headline(audit, metrics) if len(present) > 1 else metrics)
    }


def _headline(audit: str, metrics: Iterable[str]) -> list[str]:
    known = _audits_of(audit)
    headline = dict.fromkeys(metric for part in known for metric in part.headline)
    return [metric for metric in headline if metric in metrics] if known else list(metrics)


def _audits_of(audit: str) -> list[type[Audit[Any]]]:
    return [part for part in audits().values() if part.reports_as() == audit]


def _questions(columns: Sequence[MetricColumn]) -> Iterator[MetricColumn]:
    """Of the metrics that answer a question the one of an audit that tries most to learn it.

    Of several of one audit it is the last.
    """
    for question in HEADINGS:
        answering = [column for column in reversed(columns) if column.question == question]
        if answering:
            yield min(answering, key=_evidence)


def _evidence(column: MetricColumn) -> tuple[bool, int]:
    """Least for an audit that really tries, and then for the one whose turn comes first."""
    audit, _, metric = column.metric.partition(".")
    known = [a for a in _audits_of(audit) if any(m.id == metric for m in a.metrics)]
    return all(a.proxy for a in known), min((a.priority for a in known), default=0)


def _ranks(lines: Sequence[LayerLine], judged: Report) -> tuple[int, ...]:
    """Places of the lines by risk, then by how many findings are behind it."""
    beyond = Counter(x.layer for x in judged.findings if x.outcome in BEYOND)

    def gravity(place: int) -> tuple[int, int, int]:
        line = lines[place]
        left = LEVELS.index(line.possible) if line.possible else len(LEVELS)
        return LEVELS.index(line.level), left, -beyond[line.name]

    return tuple(sorted(range(len(lines)), key=gravity))
