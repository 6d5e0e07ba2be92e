"""ROC curve of the layer with the highest AUROC, as far as rows hold it."""

import pytest
from report_builder import make_report, row

from gradaudit.formats.html import Html
from gradaudit.view.charts.ranking import MEASURED, PERMUTED, rankings_of

pytestmark = pytest.mark.usefixtures("two_audits")

NULL = {"value": 0.5, "interval": [0.4, 0.6], "roc": [[0.0, 0.0], [1.0, 1.0]]}
ROC = {"roc": [[0.0, 0.2], [1.0, 1.0]], "permuted": NULL}


def test_the_best_ranked_layer_is_drawn_beside_the_permuted_attribute() -> None:
    report = make_report(
        row("leak.bits", "conv1", 0.7, details=ROC), row("leak.bits", "fc1", 0.9, details=ROC)
    )
    (roc,) = rankings_of(report)
    assert roc.panels[0].layer == "layer fc1"
    points = {name: [(p.x, p.value) for p in line] for name, line in roc.panels[0].lines.items()}
    assert points == {MEASURED: [(0, 0.2), (1, 1)], PERMUTED: [(0, 0), (1, 1)]}
    page = Html().render(report)
    assert page.count('<svg class="curves"') == 1
    assert "<h2>ROC curve</h2>" in page


def test_rows_without_a_curve_have_none() -> None:
    report = make_report(row("leak.bits", "fc1", 0.9))
    assert rankings_of(report) == ()
    assert "<h2>ROC curve</h2>" not in Html().render(report)
    only = make_report(row("leak.bits", "fc1", 0.9, details={"roc": [[0.0, 0.2], ["x", 1]]}))
    (roc,) = rankings_of(only)
    assert list(roc.panels[0].lines) == [MEASURED]
    Html().render(only)
