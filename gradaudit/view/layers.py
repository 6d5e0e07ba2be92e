"""The table of layers: the risk, one number for each question, and every headline metric."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gradaudit.audits import Audit, Metric, audits
from gradaudit.audits.base import Question
from gradaudit.core.text import number
from gradaudit.judging.policy import known_metrics
from gradaudit.judging.risk import BEYOND, LEVELS, Level, Risk, level_of, risks_of
from gradaudit.judging.verdict import ANSWERED
from gradaudit.measurement import number_of, numbers_of
from gradaudit.report import Finding, Key, Measurement, Report
from gradaudit.view.cells import TOPICS, Cell, LayerLine, MetricColumn, permuted
from gradaudit.view.facts import secret_of


@dataclass(frozen=True)
class ArrayLine:
    """An array of a model's state dict, and whether it leaves changed.

    Attributes:
        key: its name in the state dict.
        kind: its type and shape.
        before: norm of what training changed.
        after: norm of what defenses leave of the update, before noise.
        noise: deviation of the noise in an element.
        says: the same in words.
        open: whether it leaves as training made it.
    """

    key: str
    kind: str
    before: str
    after: str
    noise: str
    says: str
    open: bool


def arrays_of(report: Report) -> tuple[ArrayLine, ...]:
    """Returns the arrays that a report is about; those that leave unchanged come first."""
    lines = [
        _array_line(row)
        for metric in ("dp-audit.untouched", "job.untouched")
        for row in report.select(metric)
        if row.variant.keys() == {"key"} and row.status == "measured"
    ]
    return tuple(sorted(lines, key=lambda line: not line.open))


def _array_line(row: Measurement) -> ArrayLine:
    kind, says = (str(row.details.get(key, "")) for key in ("kind", "says"))
    sizes = (number_of(row.details.get(key)) for key in ("norm_before", "norm_after", "noise"))
    before, after, noise = ("" if size is None else number(size) for size in sizes)
    if ends := numbers_of(row.details.get("norm_after_interval")):
        after = f"≤ {number(ends[1])}"
    return ArrayLine(str(row.variant["key"]), kind, before, after, noise, says, row.value == 1)


UNMEASURED = "no audit measured single layers"
_AT = {level: level if level == "not tested" else f"at {level} risk" for level in LEVELS}


@dataclass(frozen=True)
class RowLookup:
    """Headline rows, all rows and the policy's findings, by metric and layer."""

    rows: Mapping[tuple[str, str | None], Measurement]
    every: Mapping[Key, Measurement]
    findings: Mapping[tuple[str, str | None], Sequence[Finding]]
    limits: Mapping[str, set[tuple[Level, float]]]
    measured: set[str]
    known: Mapping[str, Metric]

    @classmethod
    def of(cls, judged: Report) -> Self:
        """The layers of this report."""
        findings: dict[tuple[str, str | None], list[Finding]] = {}
        limits: dict[str, set[tuple[Level, float]]] = {}
        for finding in judged.findings:
            findings.setdefault((finding.metric, finding.layer), []).append(finding)
            if finding.limit is not None:
                limit = level_of(finding), finding.limit
                limits.setdefault(finding.metric, set()).add(limit)
        headlines = [row for row in judged.rows if not row.variant]
        return cls(
            rows={(row.id, row.layer): row for row in headlines},
            every=judged.by_key(),
            findings=findings,
            limits=limits,
            measured={row.id for row in headlines if row.layer and row.status == "measured"},
            known=known_metrics(),
        )

    def has(self, metric: str) -> bool:
        """Whether a layer has a number of this metric."""
        return metric in self.measured

    def column(self, metric: str) -> MetricColumn:
        """The column of a metric."""
        limits = tuple(sorted(self.limits.get(metric, ()), key=lambda x: LEVELS.index(x[0])))
        known = self.known.get(metric)
        if known is None:
            return MetricColumn(metric, limits=limits)
        sign = {"higher": 1, "lower": -1, None: 0}[known.riskier]
        rows = [row for (name, layer), row in self.rows.items() if name == metric and layer]
        return MetricColumn(
            metric,
            known.question,
            known.title,
            known.unit,
            sign,
            known.chance,
            limits,
            noun=known.noun,
            secret=next(filter(None, map(secret_of, rows)), ""),
            has_null=any(permuted(row, self.every) for row in rows),
        )

    def lines(
        self, judged: Report, questions: Sequence[MetricColumn], columns: Sequence[MetricColumn]
    ) -> Iterator[LayerLine]:
        """Returns a line for each layer of the model, and for each further one that has rows."""
        described = {layer.name: layer for layer in judged.target.layers}
        risks = risks_of(judged)
        for name in dict.fromkeys([*described, *(row.layer for row in judged.rows)]):
            if name is None:
                continue
            layer, risk = described.get(name), risks.get(name, Risk("not tested"))
            cells = {column.metric: self.cell(column, name) for column in columns}
            yield LayerLine(
                name=name,
                kind=layer.kind if layer else "",
                parameters=layer.parameters if layer else None,
                level=risk.level,
                possible=risk.possible,
                answers=tuple(cells[column.metric] for column in questions),
                cells=tuple(cells.values()),
            )

    def cell(self, column: MetricColumn, layer: str) -> Cell:
        """Returns the cell of a metric in a layer: its number and its risk."""
        return self.cell_of(self.rows.get((column.metric, layer)), column.question)

    def cell_of(self, row: Measurement | None, question: Question | None) -> Cell:
        """The cell of a row: its number and the policy's judgement of it.

        Where it answers a question of a report that somebody judged, it says whether a rule did.
        """
        if row is None or row.status != "measured":
            cell = Cell(row)
            return replace(cell, level="high") if cell.solved else cell
        findings = self.findings.get((row.id, row.layer), ())
        level = _gravest([x for x in findings if x.outcome in BEYOND])
        open_ = _gravest([x for x in findings if x.outcome == "unclear"])
        graver = open_ and (level is None or LEVELS.index(open_) < LEVELS.index(level))
        judged = any(finding.outcome in ANSWERED for finding in findings)
        return Cell(
            row,
            permuted(row, self.every),
            level,
            open_ if graver else None,
            judged=judged or question is None or not self.findings,
        )


def _gravest(findings: Sequence[Finding]) -> Level | None:
    return min(map(level_of, findings), key=LEVELS.index, default=None)


@dataclass(frozen=True)
class Layers:
    """The layers in the model's order, with the columns that compare them."""

    questions: tuple[MetricColumn, ...] = ()
    columns: tuple[MetricColumn, ...] = ()
    lines: tuple[LayerLine, ...] = ()
    ranks: tuple[int, ...] = field(default=(), repr=False)
    """Positions of the lines, the riskiest first."""

    def riskiest(self, most: int) -> tuple[LayerLine, ...]:
        """Returns the riskiest lines in order of risk; all in the model's order where they fit."""
        if len(self.lines) <= most:
            return self.lines
        return tuple(self.lines[place] for place in self.ranks[:most])

    @property
    def measured(self) -> bool:
        """Whether an audit measured single layers, or tried to."""
        tested = any(line.level != "not tested" for line in self.lines)
        return tested or any(cell.measured for line in self.lines for cell in line.cells)

    @property
    def tally(self) -> str:
        """Counts layers by risk, and those for which a higher risk is not excluded.

        ``3 layers: 2 at high risk, 1 at low risk; for 1 of them high risk is not excluded``.
        """
        if not self.measured:
            return UNMEASURED
        levels = Counter(line.level for line in self.lines)
        counts = [f"{levels[level]} {_AT[level]}" for level in LEVELS if levels[level]]
        left = Counter(line.possible for line in self.lines)
        more = [
            f"; for {left[level]} of them {level} risk is not excluded"
            for level in LEVELS
            if left[level]
        ]
        layers = f"{len(self.lines)} layer{'s' if len(self.lines) > 1 else ''}"
        return f"{layers}: {', '.join(counts)}{''.join(more)}"


def layers_of(judged: Report, lookup: RowLookup) -> Layers:
    """Returns the table of a judged report's layers.

    A report of one audit shows all its metrics behind the questions; one of several shows the
    headline metrics of each. A column without any number is left out.
    """
    columns = tuple(
        lookup.column(metric) for metric in chosen_metrics(judged) if lookup.has(metric)
    )
    questions = tuple(_questions(columns))
    lines = tuple(lookup.lines(judged, questions, columns))
    return Layers(questions, columns, lines, _ranks(lines, judged))


def chosen_metrics(report: Report) -> dict[str, None]:
    """Returns the ids of the metrics that get a column, in order."""
    present: dict[str, dict[str, None]] = {}
    for row in report.rows:
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
    """Returns one metric for each question, that of the audit which tries hardest to answer it.

    Of several of one audit it is the last of those that the policy limits, or else the last.
    """
    for question in TOPICS:
        answering = [column for column in reversed(columns) if column.question == question]
        if answering:
            yield min(answering, key=_evidence)


def _evidence(column: MetricColumn) -> tuple[bool, int, bool]:
    """Sort key of columns: audits that attack first, then by the audits' order, then by limits."""
    audit, _, metric = column.metric.partition(".")
    known = [a for a in _audits_of(audit) if any(m.id == metric for m in a.metrics)]
    order = min((a.priority for a in known), default=0)
    return all(a.proxy for a in known), order, not column.limits


def _ranks(lines: Sequence[LayerLine], judged: Report) -> tuple[int, ...]:
    """Ranks the lines by risk, then by how many findings they have."""
    beyond = Counter(x.layer for x in judged.findings if x.outcome in BEYOND)

    def gravity(place: int) -> tuple[int, int, int]:
        line = lines[place]
        left = LEVELS.index(line.possible) if line.possible else len(LEVELS)
        return LEVELS.index(line.level), left, -beyond[line.name]

    return tuple(sorted(range(len(lines)), key=gravity))
