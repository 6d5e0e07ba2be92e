"""How well the best reader of a private attribute ranks batches, beside a permuted attribute."""

from collections.abc import Iterable, Mapping, Sequence

from gradaudit.judging.policy import known_metrics
from gradaudit.measurement import dict_of, list_of, numbers_of
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
    sides = {MEASURED: row.details, PERMUTED: dict_of(row.details.get("permuted"))}
    rocs = {name: map(numbers_of, list_of(side.get("roc"))) for name, side in sides.items()}
    ranks = {
        name: enumerate(sorted(numbers_of(side.get("aurocs"))), 1) for name, side in sides.items()
    }
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
    lines: Mapping[str, Iterable[Sequence[float]]],
) -> Curves:
    """Returns a panel with a line through each side's pairs of numbers."""
    points = {
        side: [CurvePoint(pair[0], pair[1], pair[1], pair[1]) for pair in pairs if len(pair) == 2]
        for side, pairs in lines.items()
    }
    kept = {side: line for side, line in points.items() if line}
    return Curves(name, title, axis, {}, [CurvePanel(row.layer or "whole update", kept)])
