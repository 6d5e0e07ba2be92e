"""Merges the rows of several runs into one report in which every key is unique."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from gradaudit.audits import Audit
from gradaudit.measurement import text_of
from gradaudit.report import APART_BY, RISKIEST_BY, Measurement, Report, Variant


@dataclass(frozen=True)
class AuditRows:
    """The rows of one run of an audit, and the label that distinguishes them from other runs."""

    audit: Audit[Any]
    rows: Sequence[Measurement]
    label: Variant

    @classmethod
    def of(cls, audit: Audit[Any], rows: Sequence[Measurement]) -> Self:
        """Labels a run by the rest of its audit's name: ``{"attack": "property"}``."""
        name = audit.reports_as()
        return cls(audit, rows, {name: audit.name.removeprefix(name).strip()})


def gather(parts: Sequence[AuditRows]) -> list[Measurement]:
    """Returns the rows of all audits; rows of audits with one name are merged."""
    members = Counter(part.audit.reports_as() for part in parts)
    rows: list[Measurement] = []
    for name, count in members.items():
        group = [part for part in parts if part.audit.reports_as() == name]
        rows += merge(group) if count > 1 else group[0].rows
    return rows


def merge(parts: Sequence[AuditRows]) -> list[Measurement]:
    """Returns the rows of all parts, each with its part's label in its variant.

    The headline row of a metric and layer, with the empty variant, holds the label of where it
    comes from in its details. Of one audit's settings it is the riskiest. Of several audits it is
    the first measured in a scan's order: they play different games, and the largest of their
    numbers is beyond chance by chance. An imprecise one is no headline where another is precise.
    """
    labelled = [
        row.model_copy(update={"variant": {**part.label, **row.variant}})
        for part in parts
        for row in part.rows
    ]
    return [*_headlines(parts), *labelled]


def rows_of(report: Report, audit: Audit[Any] | type[Audit[Any]]) -> list[Measurement]:
    """Returns the rows that one audit gave to a gathered report."""
    name = audit.reports_as()
    label = audit.name.removeprefix(name).strip()
    rows = [row for row in report.measurements if row.audit == name]
    if not any(name in row.variant for row in rows):
        return rows
    return [
        row.model_copy(update={"variant": {k: v for k, v in row.variant.items() if k != name}})
        for row in rows
        if row.variant.get(name) == label
    ]


def members(row: Measurement, report: Report) -> list[Measurement]:
    """Returns the rows that a headline stands for, without inapplicable ones; else the row itself.

    The riskiest of several values need not be the one that shows the most, nor the one that leaves
    the most open, so whoever judges the headline judges them all.
    """
    by = row.details.get(RISKIEST_BY, row.details.get(APART_BY))
    if not isinstance(by, list) or row.number is None:
        return [row]
    keys = {*row.variant, *map(str, by)}
    matching = [
        other
        for other in report.rows_by_place.get(row.id, {}).get(row.layer, ())
        if other.variant.keys() == keys
        and row.variant.items() <= other.variant.items()
        and (other.status != "skipped" or other.left_out)
    ]
    return [other for one in matching for other in members(one, report)] or [row]


def member_of(row: Measurement) -> str:
    """Returns the name of the audit that made a row of a gathered report, where it is known."""
    member = row.variant.get(row.audit) or text_of(row.details.get(row.audit))
    return f"{row.audit} {member}" if member else row.audit


def audit_of(row: Measurement, report: Report) -> str:
    """Return the name of the audit that made a row, also where it is the only one of its kind."""
    name = member_of(row)
    alike = [each for each in report.options if each.partition(" ")[0] == name]
    return alike[0] if len(alike) == 1 else name


def incomplete(report: Report) -> str | None:
    """Returns why the report is not that of a finished audit; None where it is.

    It cannot where nothing at all was measured, an audit broke off, or all that an audit tried
    failed. Where nothing was measured the first reason is that of what might have been: the time
    was up, then a failure; that other audits do not apply decides nothing.
    """
    if not any(row.status == "measured" for row in report.rows):
        return "nothing could be measured: " + "; ".join(_deciding(report.rows))
    failures: dict[str, Any] = dict(cast("dict[str, Any]", report.provenance.get("broken", {})))
    measured = {member_of(row) for row in report.rows if row.status == "measured"}
    for row in report.rows:
        if row.status == "failed" and member_of(row) not in measured:
            failures.setdefault(member_of(row), row.reason)
    return "; ".join(f"{audit} failed: {reason}" for audit, reason in failures.items()) or None


def _deciding(rows: Sequence[Measurement]) -> list[str]:
    """Returns the reasons why nothing was measured; a decisive one hides the others."""
    by_kind = (
        {row.reason for row in rows if row.reason and row.left_out},
        {f"{member_of(x)} failed: {x.reason}" for x in rows if x.reason and x.status == "failed"},
        {row.reason for row in rows if row.reason and not row.left_out and row.status == "skipped"},
    )
    left_out, failed, skipped = map(sorted, by_kind)
    deciding = [*left_out, *failed]
    if not deciding:
        return skipped or ["no audit ran"]
    beside = len({row.audit for row in rows if row.reason in skipped})
    return [*deciding, *([_others(beside)] if beside else [])]


def _others(audits: int) -> str:
    return f"{audits} other audits do not apply" if audits > 1 else "another audit does not apply"


def _headlines(parts: Sequence[AuditRows]) -> list[Measurement]:
    candidates: dict[tuple[str, str | None], list[tuple[AuditRows, Measurement]]] = {}
    for part in parts:
        for row in part.rows:
            if not row.variant:
                candidates.setdefault((row.metric, row.layer), []).append((part, row))
    headlines = []
    games = len({part.audit.name for part in parts}) > 1
    chosen, by = (_first, APART_BY) if games else (_riskiest, RISKIEST_BY)
    for part, row in map(chosen, candidates.values()):
        details = {**row.details, **part.label, by: list(part.label)}
        headlines.append(row.model_copy(update={"details": details}))
    return headlines


def _first(found: Sequence[tuple[AuditRows, Measurement]]) -> tuple[AuditRows, Measurement]:
    """Return the first usable row in a scan's order."""
    return min(_usable(found), key=lambda pair: pair[0].audit.priority)


def _riskiest(found: Sequence[tuple[AuditRows, Measurement]]) -> tuple[AuditRows, Measurement]:
    """Return the riskiest usable row; the first where the metric has no risky direction."""
    usable = _usable(found)
    part, row = usable[0]
    metric = next((metric for metric in part.audit.metrics if metric.id == row.metric), None)
    if metric is None or metric.riskier is None or row.number is None:
        return part, row
    sign = 1 if metric.riskier == "higher" else -1
    return max(usable, key=lambda pair: sign * (pair[1].number or 0.0))


def _usable(
    found: Sequence[tuple[AuditRows, Measurement]],
) -> Sequence[tuple[AuditRows, Measurement]]:
    """Return the measured rows, precise ones if any; else a failed row or the first."""
    measured = [(part, row) for part, row in found if row.number is not None]
    precise = [pair for pair in measured if not pair[1].imprecise]
    failed = [pair for pair in found if pair[1].status == "failed"]
    return precise or measured or failed[:1] or found[:1]
