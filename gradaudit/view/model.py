"""The view of a report that every readable format renders."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradaudit.audits.gathering import members
from gradaudit.core.text import variant_text
from gradaudit.judging.policy import Policy
from gradaudit.judging.risk import with_findings
from gradaudit.measurement import text_of
from gradaudit.report import APART_BY, Measurement, Report, marked
from gradaudit.view.cells import Cell, MetricWarning, doubts_of
from gradaudit.view.charts.ranking import rankings_of
from gradaudit.view.charts.sweep import Curves, SweepView, sweep_of
from gradaudit.view.concerns import Concern, cleared_of, concerns_of
from gradaudit.view.facts import provenance_facts
from gradaudit.view.faults import FaultLine, faults_of, job_lines
from gradaudit.view.gaps import UnmeasuredPart, gaps_of
from gradaudit.view.layers import ArrayLine, Layers, RowLookup, arrays_of, chosen_metrics, layers_of
from gradaudit.view.scope import Scope, scope_of
from gradaudit.view.summary import Summary, summary_of
from gradaudit.view.verdict_sentence import ReportVerdict, verdict_of

MOST_MODEL_LINES = 24
"""Most rows of the whole model that are shown; a sweep may have thousands."""


@dataclass(frozen=True)
class ModelLine:
    """A row about the whole model; ``remark`` says how its value must not be read, or is empty."""

    metric: str
    variant: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class View:
    """A report prepared for display, section by section.

    Attributes:
        verdict: outcome, policy, and the worst finding.
        summary: subject, advice, assumptions and what was not tested.
        scope: what the numbers are about.
        concerns: every finding, the gravest first.
        cleared: attacks that found nothing.
        layers: risk and numbers of each layer.
        model: numbers of the whole model.
        arrays: what becomes of each array of a client's update.
        faults: of a federated job, with their repairs.
        job: chains and epsilons of a federated job, a line each.
        gaps: what was not looked at.
        doubts: what casts doubt on numbers that are shown.
        how: confidence, samples, seed, device, time.
        unshown: number of measured rows that appear in none of these.
        alone: whether one audit made the report, so that all its metrics are worth showing.
        rankings: ROC curve and null distribution of the layer that gives an attribute away most.
        sweep: verdicts and curves of a sweep's settings; None of any other report.
    """

    verdict: ReportVerdict
    summary: Summary
    scope: Scope
    concerns: tuple[Concern, ...]
    cleared: tuple[Concern, ...]
    layers: Layers
    model: tuple[ModelLine, ...]
    arrays: tuple[ArrayLine, ...]
    faults: tuple[FaultLine, ...]
    job: tuple[str, ...]
    gaps: tuple[UnmeasuredPart, ...]
    doubts: tuple[MetricWarning, ...]
    how: str
    unshown: int
    alone: bool
    sweep: SweepView | None = None
    rankings: tuple[Curves, ...] = ()

    @property
    def findings(self) -> tuple[Concern, ...]:
        """Every finding, and after them the attacks that found nothing."""
        return (*self.concerns, *self.cleared)


def view(report: Report, policy: Policy | None = None) -> View:
    """Chooses and words what is shown of a report.

    Args:
        report: judged or not.
        policy: what it is judged by; without it its own findings count, or the default policy
            where it has none.
    """
    judged = with_findings(report, policy)
    concerns, lookup = concerns_of(judged), RowLookup.of(judged)
    layers = layers_of(judged, lookup)
    model = _model_rows(judged, chosen_metrics(judged))[:MOST_MODEL_LINES]
    shown = _measured(cell for line in layers.lines for cell in line.cells)
    measured = sum(row.status == "measured" for row in judged.rows)
    verdict, scope = verdict_of(judged, concerns, layers), scope_of(judged)
    gaps = gaps_of(judged, layers.lines)
    return View(
        verdict=verdict,
        summary=summary_of(verdict, scope, concerns, gaps),
        scope=scope,
        concerns=concerns,
        cleared=cleared_of(judged),
        layers=layers,
        model=tuple(map(_model_line, model)),
        arrays=arrays_of(judged),
        faults=tuple(faults_of(judged)),
        job=job_lines(judged),
        gaps=gaps,
        doubts=doubts_of([*shown, *model], len(layers.lines)),
        how=provenance_facts(judged),
        unshown=measured - len(shown) - len(model),
        alone=len({row.audit for row in judged.rows}) == 1,
        sweep=sweep_of(report, policy),
        rankings=rankings_of(judged),
    )


def _measured(cells: Iterable[Cell]) -> list[Measurement]:
    return [cell.row for cell in cells if cell.row is not None and cell.measured]


def _model_rows(report: Report, chosen: Mapping[str, None]) -> list[Measurement]:
    """Returns headline rows of the whole model, and all its rows of audits without headlines.

    In the report of one audit the rows that a headline is the riskiest of follow it, so that they
    can be compared. Several games stand in the place of the headline that copies one of them.
    """
    with_headline = {row.audit for row in report.rows if not row.variant}
    compared = len(report.options) == 1 and "sweep" not in report.provenance
    rows: dict[int, Measurement] = {}
    for row in report.rows:
        if row.layer is not None or row.status != "measured":
            continue
        if row.variant and row.audit not in with_headline:
            rows[id(row)] = row
        elif not row.variant and row.id in chosen:
            games = members(row, report) if APART_BY in row.details else []
            beside = members(row, report) if compared else []
            rows |= {id(r): r for r in (games or (row, *beside)) if r.status == "measured"}
    return list(rows.values())


def _model_line(row: Measurement) -> ModelLine:
    return ModelLine(
        metric=row.id,
        variant=variant_text(row.variant),
        value=marked(row),
        remark=text_of(row.details.get("remark")),
    )
