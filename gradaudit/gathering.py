"""Puts the rows of several audits into one report in which every key is unique."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gradaudit.audits import Audit, Metric
from gradaudit.report import Measurement

Rows = Sequence[Measurement]
Part = tuple[Audit[Any], Rows]


def gather(parts: Sequence[Part]) -> list[Measurement]:
    """The rows of all audits.

    Where several audits report under one name (``attack property`` and ``attack user`` both as
    ``attack``), each row's variant says which of them it comes from, and the headline row of a
    metric, with the empty variant, is the riskiest of theirs.
    """
    members = Counter(audit.reports_as() for audit, _ in parts)
    alone = [row for audit, rows in parts if members[audit.reports_as()] == 1 for row in rows]
    for name, count in members.items():
        if count > 1:
            group = [part for part in parts if part[0].reports_as() == name]
            alone += [*_headlines(group), *_labelled(group)]
    return alone


def member_of(row: Measurement) -> str:
    """Name of the audit that a row of a gathered report comes from, as far as the row tells."""
    member = row.variant.get(row.audit)
    return row.audit if member is None else f"{row.audit} {member}"


def _labelled(group: Sequence[Part]) -> Iterator[Measurement]:
    for audit, rows in group:
        for row in rows:
            yield row.model_copy(update={"variant": {**_label(audit), **row.variant}})


def _headlines(group: Sequence[Part]) -> Iterator[Measurement]:
    """For each metric and layer the riskiest headline; where none was measured, the first."""
    candidates: dict[tuple[str, str | None], list[tuple[Audit[Any], Measurement]]] = {}
    for audit, rows in group:
        for row in rows:
            if not row.variant:
                candidates.setdefault((row.metric, row.layer), []).append((audit, row))
    for (metric, _), found in candidates.items():
        audit, row = _riskiest(_metric(group, metric), found)
        yield row.model_copy(update={"details": {**row.details, **_label(audit)}})


def _riskiest(
    metric: Metric | None, found: Sequence[tuple[Audit[Any], Measurement]]
) -> tuple[Audit[Any], Measurement]:
    measured = [(audit, row) for audit, row in found if row.number is not None]
    if not measured:
        return next((pair for pair in found if pair[1].status == "failed"), found[0])
    if metric is None or metric.riskier is None:
        return measured[0]
    sign = 1 if metric.riskier == "higher" else -1
    return max(measured, key=lambda pair: sign * (pair[1].number or 0.0))


def _metric(group: Iterable[Part], name: str) -> Metric | None:
    return next((m for audit, _ in group for m in audit.metrics if m.id == name), None)


def _label(audit: Audit[Any]) -> dict[str, str]:
    return {audit.reports_as(): audit.name.removeprefix(audit.reports_as()).strip()}
