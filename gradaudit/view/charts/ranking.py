"""How well the best reader of a private attribute ranks batches, beside a permuted attribute."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from gradaudit.judging.policy import known_metrics
from gradaudit.report import Measurement, Report
from gradaudit.view.charts.sweep import CurvePanel, CurvePoint, Curves

MEASURED, PERMUTED = "measured", "permuted attribute"


def rankings_of(report: Report) -> tuple[Curves, ...]:
    """Returns the ROC curve of the layer that ranks best, and its null distribution.

    The null distribution are the AUROCs of the repetitions with a permuted attribute, in order;
    those with the real attribute stand beside them. Empty where no row holds them.
    """
    rows = [row for row in report.rows if row.details.get("roc") and not row.variant]
    if not rows:
        return ()
    row = max(rows, key=lambda each: each.value or 0.0)
    known = known_metrics().get(row.id)
    null = row.details.get("permuted")
    sides = {MEASURED: row.details, PERMUTED: null if isinstance(null, dict) else {}}
    rocs = {name: _pairs(side.get("roc")) for name, side in sides.items()}
    ranks = {name: _ordered(side.get("aurocs")) for name, side in sides.items()}
    title = known.title if known else row.id
    drawn = (
        _curves(row, "ROC: true positive rate", "false positive rate", title, rocs),
        _curves(row, "AUROC of each repetition", "repetition, the least first", title, ranks),
    )
    return tuple(curves for curves in drawn if curves.panels[0].lines)


def _curves(
    row: Measurement,
    name: str,
    axis: str,
    title: str,
    lines: Mapping[str, Sequence[CurvePoint]],
) -> Curves:
    kept = {side: points for side, points in lines.items() if points}
    return Curves(name, title, axis, {}, [CurvePanel(row.layer or "whole update", kept)])


def _pairs(given: JsonValue) -> list[CurvePoint]:
    pairs = given if isinstance(given, list) else []
    return [
        CurvePoint(float(x), float(y), float(y), float(y))
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2
        for x, y in [pair]
        if isinstance(x, int | float) and isinstance(y, int | float)
    ]


def _ordered(given: JsonValue) -> list[CurvePoint]:
    values = given if isinstance(given, list) else []
    numbers = sorted(float(value) for value in values if isinstance(value, int | float))
    return [CurvePoint(float(i), y, y, y) for i, y in enumerate(numbers, 1)]
