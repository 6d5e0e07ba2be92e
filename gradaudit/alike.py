"""Rows that say the same about many layers are merged into one row, and split again."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from gradaudit.measurement import UNMEASURED, Measurement, counted, singles

MOST_APART = 100
"""Largest number of layers whose rows with the same reason are still written one by one, unless an
audit was left out. In a scan of 1,000 layers, inapplicable rows alone took 14 MB, and 1.4 MB of 100
layers."""


def as_few(
    row: Measurement, layers: Mapping[str, Sequence[str]], of_model: Sequence[str]
) -> list[Measurement]:
    """As few rows as this one can stand for: metrics of layers, and metrics of the whole model.

    They are as few as can be, but one for each layer where those are few and were not left out.
    """
    metrics: dict[tuple[str, ...], list[str]] = {}
    for metric, names in layers.items():
        metrics.setdefault(tuple(names), []).append(metric)
    metrics.pop((), None)
    if of_model and not metrics:
        metrics = {(): []}
    last = next(reversed(metrics), None)
    made = [
        _standing_for(row, each, names, of_model if names == last else ())
        for names, each in metrics.items()
    ]
    if row.left_out or any(len(names) > MOST_APART for names in metrics):
        return made
    return [single for each in made for single in singles(each)]


def _standing_for(
    row: Measurement, metrics: Sequence[str], layers: Sequence[str], of_model: Sequence[str]
) -> Measurement:
    """A row that stands for every pair of a metric and a layer, and for the model's metrics.

    Where that is one row alone, it is an ordinary one.
    """
    names: dict[str, JsonValue] = {
        "layers": [*layers],
        "metrics": [*metrics],
        "model_metrics": [*of_model],
    }
    more = {
        "metric": [*metrics, *of_model][0],
        "layer": None,
        "variant": {**row.variant, UNMEASURED: 1},
        "details": {**row.details, **names},
    }
    made = row.model_copy(update=more)
    return made if counted(made) > 1 else next(singles(made))


def together(rows: Iterable[Measurement]) -> list[Measurement]:
    """The rows, with those that say the same about several layers merged into one.

    They are what was left out, and what was not measured for one reason more than ``MOST_APART``
    times. Each stands in the place of the first of them.
    """
    groups: dict[object, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(_words(row), []).append(row)
    return list(_numbered(row for group in groups.values() for row in _as_few(group)))


def _numbered(rows: Iterable[Measurement]) -> Iterator[Measurement]:
    """The rows, with merged rows of the same variant numbered from 1."""
    numbers: Counter[str] = Counter()
    for row in rows:
        if UNMEASURED in row.variant:
            alike = json.dumps([row.id, {**row.variant, UNMEASURED: 0}], sort_keys=True)
            numbers[alike] += 1
            variant = {**row.variant, UNMEASURED: numbers[alike]}
            row = row.model_copy(update={"variant": variant})
        yield row


def _words(row: Measurement) -> object:
    """Key of the rows that can be merged: equal in everything but metric and layer."""
    if row.status == "measured" or UNMEASURED in row.variant:
        return id(row)
    details = json.dumps([row.variant, row.details], sort_keys=True)
    return row.audit, row.status, row.reason, row.unit, row.n, details


def _as_few(rows: Sequence[Measurement]) -> Sequence[Measurement]:
    """The fewest merged rows that stand for these rows, which differ only by metric and layer."""
    if len(rows) == 1:
        return rows
    layers: dict[str, list[str]] = {}
    for row in rows:
        if row.layer is not None:
            layers.setdefault(row.metric, []).append(row.layer)
    return as_few(rows[0], layers, [row.metric for row in rows if row.layer is None])
