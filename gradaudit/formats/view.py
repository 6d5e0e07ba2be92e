"""What every readable format says of a report, as plain strings: columns, lines, reasons, notes.

Formats differ in how they escape and lay out these strings, not in what they say.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradaudit.audits import audits
from gradaudit.formats.facts import checkpoint_notes, data_facts, how, title, warnings
from gradaudit.formats.troubles import Trouble, abridged, troubles_of
from gradaudit.judging.policy import Policy
from gradaudit.judging.risk import LEVELS, Level, Risk, risks_of, with_findings
from gradaudit.report import Measurement, Report
from gradaudit.text import marked, variant_text

MOST_MODEL_LINES = 24
"""Rows of the whole model that are shown; a sweep may have thousands."""

SKIPPED = "–"
FAILED = "failed"
WHOLE_MODEL = "the whole model"


@dataclass(frozen=True)
class LayerLine:
    """A layer: ``cells`` has one string for each column, empty where the audit has no row."""

    name: str
    kind: str
    parameters: int | None
    level: Level
    possible: Level | None
    cells: tuple[str, ...]

    @property
    def size(self) -> str:
        """How many parameters it has; empty where the report does not say it."""
        return "" if self.parameters is None else f"{self.parameters:,}"

    @property
    def risk(self) -> str:
        """What is shown, and with a question mark what is not excluded: ``low, high?``."""
        return self.level + (f", {self.possible}?" if self.possible else "")


@dataclass(frozen=True)
class ModelLine:
    """A row about the whole model; ``remark`` says what the value does not mean, or is empty."""

    metric: str
    variant: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Note:
    """Why something was not measured: ``what`` (an audit or metric), where (layers), reason."""

    what: str
    layers: tuple[str, ...]
    status: str
    reason: str

    @property
    def where(self) -> str:
        """`` in conv1, conv2``; empty where it holds for all layers."""
        return f" in {abridged(self.layers)}" if self.layers else ""


@dataclass(frozen=True)
class View:
    """A report made ready to be shown."""

    title: str
    data: str
    checkpoint_notes: tuple[str, ...]
    warnings: tuple[str, ...]
    columns: tuple[str, ...]
    layers: tuple[LayerLine, ...]
    model: tuple[ModelLine, ...]
    troubles: tuple[Trouble, ...]
    notes: tuple[Note, ...]
    doubts: tuple[Note, ...]
    unshown: int
    how: str
    whole: Risk | None = None

    @property
    def tally(self) -> str:
        """How many layers have each risk level: ``2 high, 1 low of 3 layers``.

        What is not excluded stands beside it: ``…; high not excluded in 1``. The whole model is
        named where a rule judged it: ``…; whole model high``.
        """
        found = Counter(line.level for line in self.layers)
        counts = ", ".join(f"{found[level]} {level}" for level in LEVELS if found[level])
        left = Counter(line.possible for line in self.layers)
        more = [f"; {level} not excluded in {left[level]}" for level in LEVELS if left[level]]
        whole = f"; whole model {self.whole}" if self.whole else ""
        return f"{counts} of {len(self.layers)} layers{''.join(more)}{whole}"


def view(report: Report, policy: Policy | None = None) -> View:
    """Choose and word what is shown of a report.

    A report of one audit shows all its metrics; one of several shows the headline metrics of
    each. A column in which no layer was measured becomes a note.
    """
    judged = with_findings(report, policy)
    risks = risks_of(judged)
    chosen = _chosen(report)
    headlines = [row for row in report.measurements if not row.variant and row.id in chosen]
    filled = [row for row in headlines if row.layer is not None and row.status == "measured"]
    with_values = {row.id for row in filled}
    columns = [metric for metric in chosen if metric in with_values]
    model = [row for row in _model_rows(report, chosen) if row.status == "measured"]
    shown = model[:MOST_MODEL_LINES]
    return View(
        title=title(report),
        data=data_facts(report),
        checkpoint_notes=checkpoint_notes(report),
        warnings=warnings(report),
        columns=tuple(columns),
        layers=tuple(_layer_lines(judged, columns)),
        model=tuple(map(_model_line, shown)),
        troubles=troubles_of(judged),
        notes=_notes(headlines, report),
        doubts=_doubts([*filled, *shown]),
        unshown=sum(row.status == "measured" for row in report.measurements)
        - len(filled)
        - len(shown),
        how=how(report),
        whole=risks.get(None),
    )


def _chosen(report: Report) -> dict[str, None]:
    """Ids of the metrics worth showing, in order."""
    present: dict[str, dict[str, None]] = {}
    for row in report.measurements:
        present.setdefault(row.audit, {})[row.metric] = None
    return {
        f"{audit}.{metric}": None
        for audit, metrics in present.items()
        for metric in (_headline(audit, metrics) if len(present) > 1 else metrics)
    }


def _headline(audit: str, metrics: Iterable[str]) -> list[str]:
    known = [part for part in audits().values() if part.reports_as() == audit]
    headline = dict.fromkeys(metric for part in known for metric in part.headline)
    return [metric for metric in headline if metric in metrics] if known else list(metrics)


def _layer_lines(judged: Report, columns: Sequence[str]) -> Iterable[LayerLine]:
    rows = {(row.id, row.layer): row for row in judged.measurements if not row.variant}
    known = {layer.name: layer for layer in judged.target.layers}
    risks = risks_of(judged)
    for name in dict.fromkeys([*known, *(row.layer for row in judged.measurements)]):
        if name is None:
            continue
        layer, risk = known.get(name), risks.get(name, Risk("not tested"))
        yield LayerLine(
            name=name,
            kind=layer.kind if layer else "",
            parameters=layer.parameters if layer else None,
            level=risk.level,
            possible=risk.possible,
            cells=tuple(cell(rows.get((metric, name))) for metric in columns),
        )


def cell(row: Measurement | None, without: str = "") -> str:
    """A row in a table; ``without`` stands for one that there is not."""
    if row is None:
        return without
    if row.status == "measured":
        return marked(row)
    return SKIPPED if row.status == "skipped" else FAILED


def _doubts(rows: Sequence[Measurement]) -> tuple[Note, ...]:
    """What casts doubt on numbers that are shown, and of which layers."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for doubt in row.doubts:
            groups.setdefault((row.id, doubt), []).append(row.layer or WHOLE_MODEL)
    return tuple(
        Note(what=metric, layers=tuple(layers), status="measured", reason=doubt)
        for (metric, doubt), layers in groups.items()
    )


def _model_rows(report: Report, chosen: Mapping[str, None]) -> list[Measurement]:
    """Headline rows of the whole model, and every such row of audits without any headline."""
    with_headline = {row.audit for row in report.measurements if not row.variant}
    return [
        row
        for row in report.measurements
        if row.layer is None
        and (row.id in chosen if not row.variant else row.audit not in with_headline)
    ]


def _model_line(row: Measurement) -> ModelLine:
    remark = row.details.get("remark")
    return ModelLine(
        metric=row.id,
        variant=variant_text(row.variant),
        value=marked(row),
        remark=remark if isinstance(remark, str) else "",
    )


def _notes(headlines: Sequence[Measurement], report: Report) -> tuple[Note, ...]:
    """One note for each reason of an audit; without layers where it holds for all of them.

    What is told of is the audit; of rows about the whole model beside others with numbers, their
    metrics.
    """
    every = {layer.name for layer in report.target.layers}
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for row in headlines:
        if row.status != "measured":
            groups.setdefault((row.audit, row.status, row.reason or ""), []).append(row)
    notes = []
    for (audit, status, reason), rows in groups.items():
        names = tuple(dict.fromkeys(row.layer for row in rows if row.layer is not None))
        metrics = dict.fromkeys(row.id for row in rows)
        beside = any(row.audit == audit and row.status == "measured" for row in headlines)
        what = ", ".join(metrics) if not names and (beside or len(metrics) == 1) else audit
        notes.append(Note(what, () if every <= set(names) else names, status, reason))
    return tuple(notes)
