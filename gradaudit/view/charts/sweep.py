"""A sweep's settings, each with its verdict, and the curves of its metrics."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gradaudit.core.text import variant_text
from gradaudit.judging import Policy, gate
from gradaudit.judging.policy import DEFAULT, known_metrics
from gradaudit.judging.verdict import Word, verdict
from gradaudit.measurement import dict_of
from gradaudit.report import Measurement, Report
from gradaudit.view.concerns import concerns_of

MOST_CURVES = 3
MOST_SETTINGS = 100
MOST_PANELS = 12
WHOLE = "whole model"


class SettingLine(NamedTuple):
    """A setting of a sweep: its verdict, and the gravest that is shown or left open."""

    setting: str
    word: Word
    worst: str


class CurvePoint(NamedTuple):
    """A value at a place of the axis, with its interval's ends (the value without any)."""

    x: float
    value: float
    low: float
    high: float


class CurvePanel(NamedTuple):
    """A layer's curves: the points of each of the other settings, by its name."""

    layer: str
    lines: Mapping[str, Sequence[CurvePoint]]


class Curves(NamedTuple):
    """A metric along an axis, a panel for each layer; ``places`` names values that are texts."""

    metric: str
    title: str
    axis: str
    places: Mapping[float, str]
    panels: Sequence[CurvePanel]


class SweepView(NamedTuple):
    """What a sweep compares, and by which policy."""

    policy: str
    lines: tuple[SettingLine, ...]
    curves: tuple[Curves, ...]


def sweep_of(report: Report, policy: Policy | None) -> SweepView | None:
    """Returns the settings of a sweep; None of any other report.

    Each setting is judged as if its rows were a report of their own.
    """
    names = list(dict_of(report.provenance.get("sweep")))
    swept: dict[str, list[Measurement]] = {}
    found = [row for row in report.rows if names and row.variant.keys() == set(names)]
    for row in found:
        ordered = {name: row.variant[name] for name in names}
        swept.setdefault(variant_text(ordered), []).append(row)
    if not swept:
        return None
    first = list(swept.items())[:MOST_SETTINGS]
    lines = tuple(_line(setting, rows, report, policy) for setting, rows in first)
    every = [row for row in found if row.value is not None]
    return SweepView(
        policy.name or "its policy" if policy else DEFAULT, lines, tuple(_curves(every, names))
    )


def _line(
    setting: str, rows: Sequence[Measurement], report: Report, policy: Policy | None
) -> SettingLine:
    plain = [row.model_copy(update={"variant": {}}) for row in rows]
    kept = {key: value for key, value in report.provenance.items() if key != "sweep"}
    alone = report.model_copy(update={"measurements": plain, "findings": [], "provenance": kept})
    judged = gate(alone, policy)
    worst = next(iter(concerns_of(judged)), None)
    return SettingLine(setting, verdict(judged), worst.summary if worst else "")


def _curves(rows: Sequence[Measurement], names: Sequence[str]) -> Iterator[Curves]:
    """Yields the curves of the metrics that answer a question, else of the first that there are."""
    known = known_metrics()
    ids = list(dict.fromkeys(row.id for row in rows))
    asked = [name for name in ids if name in known and known[name].question]
    along = next(
        (name for name in names if all(_is_number(r.variant[name]) for r in rows)), names[0]
    )
    values = list(dict.fromkeys(row.variant[along] for row in rows))
    numbers = all(map(_is_number, values))
    places = {v: float(v) if numbers else float(i) for i, v in enumerate(values)}
    for metric in (asked or ids)[:MOST_CURVES]:
        own = [row for row in rows if row.id == metric]
        layers = list(dict.fromkeys(row.layer for row in own))[:MOST_PANELS]
        panels = [CurvePanel(layer or WHOLE, _lines(own, layer, along, places)) for layer in layers]
        texts = {} if numbers else {place: str(value) for value, place in places.items()}
        yield Curves(metric, known[metric].title if metric in known else "", along, texts, panels)


def _lines(
    rows: Sequence[Measurement],
    layer: str | None,
    along: str,
    places: Mapping[str | int | float | bool, float],
) -> Mapping[str, Sequence[CurvePoint]]:
    lines: dict[str, list[CurvePoint]] = {}
    for row in rows:
        if row.layer == layer and row.value is not None:
            rest = variant_text({k: v for k, v in row.variant.items() if k != along})
            low, high = row.interval or (row.value, row.value)
            point = CurvePoint(places[row.variant[along]], row.value, low, high)
            lines.setdefault(rest, []).append(point)
    return {name: sorted(points) for name, points in lines.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
