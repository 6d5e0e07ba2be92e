"""What a judged report holds of its layers, looked up by metric and layer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from gradaudit.audits import Metric
from gradaudit.judging.policy import known_metrics
from gradaudit.judging.risk import BEYOND, LEVELS, Level, Risk, level_of, risks_of
from gradaudit.report import Finding, Key, Measurement, Report
from gradaudit.view.cells import Cell, LayerLine, MetricColumn
from gradaudit.view.floors import permuted


@dataclass(frozen=True)
class Lookup:
    """Headline rows of layers, every row, and what the policy says, by metric and layer."""

    rows: Mapping[tuple[str, str | None], Measurement]
    every: Mapping[Key, Measurement]
    findings: Mapping[tuple[str, str | None], Sequence[Finding]]
    limits: Mapping[str, set[tuple[Level, float]]]
    measured: set[str]
    known: Mapping[str, Metric]

    @classmethod
    def of(cls, judged: Report) -> Self:
        """What this report holds."""
        findings: dict[tuple[str, str | None], list[Finding]] = {}
        limits: dict[str, set[tuple[Level, float]]] = {}
        for finding in judged.findings:
            findings.setdefault((finding.metric, finding.layer), []).append(finding)
            limit = finding.min if finding.max is None else finding.max
            if limit is not None:
                limits.setdefault(finding.metric, set()).add((level_of(finding), limit))
        headlines = [row for row in judged.measurements if not row.variant]
        return cls(
            rows={(row.id, row.layer): row for row in headlines},
            every=judged.by_key(),
            findings=findings,
            limits=limits,
            measured={row.id for row in headlines if row.layer and row.status == "measured"},
            known=known_metrics(),
        )

    def has(self, metric: str) -> bool:
        """Whether a layer has a number of it."""
        return metric in self.measured

    def column(self, metric: str) -> MetricColumn:
        """What is known of a metric."""
        limits = tuple(sorted(self.limits.get(metric, ()), key=lambda x: LEVELS.index(x[0])))
        known = self.known.get(metric)
        if known is None:
            return MetricColumn(metric, limits=limits)
        sign = {"higher": 1, "lower": -1, None: 0}[known.riskier]
        return MetricColumn(
            metric, known.question, known.title, known.unit, sign, known.chance, limits
        )

    def lines(
        self, judged: Report, questions: Sequence[MetricColumn], columns: Sequence[MetricColumn]
    ) -> Iterator[LayerLine]:
        """A line for each layer of the model, and for each other one that has rows."""
        described = {layer.name: layer for layer in judged.target.layers}
        risks = risks_of(judged)
        for name in dict.fromkeys([*described, *(row.layer for row in judged.measurements)]):
            if name is None:
                continue
            layer, risk = described.get(name), risks.get(name, Risk("not tested"))
            cells = {column.metric: self.cell(column.metric, name) for column in columns}
            yield LayerLine(
                name=name,
                kind=layer.kind if layer else "",
                parameters=layer.parameters if layer else None,
                level=risk.level,
                possible=risk.possible,
                answers=tuple(cells[column.metric] for column in questions),
                cells=tuple(cells.values()),
            )

    def cell(self, metric: str, layer: str) -> Cell:
        """The number of a metric in a layer, and what the policy makes of it."""
        row = self.rows.get((metric, layer))
        if row is None or row.status != "measured":
            return Cell(row)
        findings = self.findings.get((metric, layer), ())
        level = _gravest([x for x in findings if x.outcome in BEYOND])
        open_ = _gravest([x for x in findings if x.outcome == "unclear"])
        graver = open_ and (level is None or LEVELS.index(open_) < LEVELS.index(level))
        return Cell(row, permuted(row, self.every), level, open_ if graver else None)


def _gravest(findings: Sequence[Finding]) -> Level | None:
    return min(map(level_of, findings), key=LEVELS.index, default=None)
