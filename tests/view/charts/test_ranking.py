"""ROC curve and null distribution of the layer that ranks best, as far as rows hold them."""

import pytest
from report_builder import make_report, row

from gradaudit.formats.html import Html
from gradaudit.view.charts.ranking import MEASURED, PERMUTED, rankings_of

pytestmark = pytest.mark.usefixtures("two_audits")

NULL = {"value": 0.5, "interval": [0.4, 0.6], "roc": [[0.0, 0.0], [1.0, 1.0]], "aurocs": [0.6, 0.4]}
ROC = {"roc": [[0.0, 0.2], [1.0, 1.0]], "aurocs": [0.9, 0.8], "permuted": NULL}


def test_the_best_ranked_layer_is_drawn_beside_the_permuted_attribute() -> None:
    weaker = {**ROC, "aurocs": [0.1]}
    report = make_report(
        row("leak.bits", "conv1", 0.7, details=weaker), row("leak.bits", "fc1", 0.9, details=ROC)
    )
    roc, null = rankings_of(report)
    assert roc.panels[0].layer == "fc1"
    points = {name: [(p.x, p.value) for p in line] for name, line in roc.panels[0].lines.items()}
    assert points == {MEASURED: [(0, 0.2), (1, 1)], PERMUTED: [(0, 0), (1, 1)]}
    ordered = {name: [(p.x, p.value) for p in line] for name, line in null.panels[0].lines.items()}
    assert ordered == {MEASURED: [(1, 0.8), (2, 0.9)], PERMUTED: [(1, 0.4), (2, 0.6)]}
    page = Html().render(report)
    assert page.count('<svg class="curves"') == 2
    assert "How well an attacker ranks" in page


def test_rows_without_a_curve_have_none() -> None:
    report = make_report(row("leak.bits", "fc1", 0.9))
    assert rankings_of(report) == ()
    assert "How well an attacker ranks" not in Html().render(report)
    only = make_report(row("leak.bits", "fc1", 0.9, details={"roc": [[0.0, 0.2], ["x", 1]]}))
    (roc,) = rankings_of(only)
    assert list(roc.panels[0].lines) == [MEASURED]
    Html().render(only)
