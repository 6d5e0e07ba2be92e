"""The contract that every audit's rows satisfy."""

from collections.abc import Iterator, Sequence
from typing import Any

from gradaudit.audits.base import Audit
from gradaudit.core.specs import suggest
from gradaudit.report import Measurement

MOST_NAMES = 5
"""Layers that a breach of the contract names."""


def breaches(
    audit: type[Audit[Any]], rows: Sequence[Measurement], layers: Sequence[str]
) -> list[str]:
    """List the breaches of the contract in the rows of one run, a clause each.

    A rule of a policy judges the rows that it finds. A metric under another name, or a layer left
    out, is a row that no rule finds; so every audit is held to what it declares.

    Rows are of the audit and of metrics that it declares, of the whole model or of a layer that is
    looked at, and no two share a key. A metric of which one layer has a headline has one for every
    layer, measured or with a reason; an audit with metrics of layers speaks of every layer. An
    interval holds its value.
    """
    breaches = [*_misnamed(audit, rows), *_misplaced(audit, rows, layers), *_repeated(rows)]
    return [*breaches, *_outside(rows)]


def _misnamed(audit: type[Audit[Any]], rows: Sequence[Measurement]) -> Iterator[str]:
    for name in dict.fromkeys(row.audit for row in rows):
        if name != audit.reports_as():
            yield f"a row names the audit {name!r} instead of {audit.reports_as()!r}"
    declared = {metric.id: metric for metric in audit.metrics}
    for name in dict.fromkeys(row.metric for row in rows):
        if name not in declared:
            yield f"the metric {name!r} is not declared{suggest(name, declared)}"
    of_layers = (row.metric for row in rows if row.layer is not None and row.metric in declared)
    if strange := [name for name in of_layers if not declared[name].per_layer]:
        yield f"the metric {strange[0]!r} is declared for the whole model, not for layers"


def _misplaced(
    audit: type[Audit[Any]], rows: Sequence[Measurement], layers: Sequence[str]
) -> Iterator[str]:
    """List breaches by rows of layers not audited, and by audited layers without rows."""
    spoken_of = dict.fromkeys(row.layer for row in rows if row.layer is not None)
    if strange := [name for name in spoken_of if name not in layers]:
        yield f"rows of {_named(strange)}, which is not looked at"
    headlines: dict[str, set[str]] = {}
    for row in rows:
        if row.layer is not None and not row.variant:
            headlines.setdefault(row.metric, set()).add(row.layer)
    for metric, with_row in headlines.items():
        if missing := [name for name in layers if name not in with_row]:
            yield f"no row of {metric} for {_named(missing)}"
    mute = [name for name in layers if name not in spoken_of]
    if mute and not headlines and any(metric.per_layer for metric in audit.metrics):
        yield f"no row at all for {_named(mute)}"


def _outside(rows: Sequence[Measurement]) -> Iterator[str]:
    for row in rows:
        if row.number is not None and row.interval is not None and not row.infinite:
            low, high = row.interval
            if not low <= row.number <= high:
                where = _named([row.layer or "the whole model"])
                yield f"the interval of {row.metric} for {where} excludes its value {row.number:g}"
                return


def _repeated(rows: Sequence[Measurement]) -> Iterator[str]:
    seen = set()
    for row in rows:
        if row.key in seen:
            yield f"two rows of {row.metric} for {_named([row.layer or 'the whole model'])} alike"
            return
        seen.add(row.key)


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
