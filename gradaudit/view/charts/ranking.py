"""ROC curve of the best classifier of a private attribute, beside a permuted attribute's."""

from gradaudit.judging.policy import known_metrics
from gradaudit.measurement import dict_of, list_of, numbers_of
from gradaudit.report import Report
from gradaudit.view.charts.sweep import CurvePanel, CurvePoint, Curves

MEASURED, PERMUTED = "measured", "permuted attribute"


def rankings_of(report: Report) -> tuple[Curves, ...]:
    """Return the ROC curve of the layer with the highest AUROC; empty if no row has one."""
    rows = [row for row in report.rows if row.details.get("roc") and not row.variant]
    if not rows:
        return ()
    row = max(rows, key=lambda each: each.value or 0.0)
    known = known_metrics().get(row.id)
    sides = {MEASURED: row.details, PERMUTED: dict_of(row.details.get("permuted"))}
    lines = {}
    for name, side in sides.items():
        pairs = [pair for pair in map(numbers_of, list_of(side.get("roc"))) if len(pair) == 2]
        if pairs:
            lines[name] = [CurvePoint(x, y, y, y) for x, y in pairs]
    panel = CurvePanel(f"layer {row.layer}" if row.layer else "whole update", lines)
    title = known.title if known else row.id
    return (Curves("true positive rate", title, "false positive rate", {}, [panel]),)
