"""The settings of a sweep: each judged as a report of its own, and its curves."""

from typing import Any

import pytest
from report_builder import make_report, row

from gradaudit.formats import format_named
from gradaudit.formats.html import Html
from gradaudit.judging import Policy
from gradaudit.report import Report
from gradaudit.view import view
from gradaudit.view.charts.plots import round_ticks
from gradaudit.view.charts.sweep import MOST_SETTINGS, SweepView

pytestmark = pytest.mark.usefixtures("two_audits")

VALUES = {(1, "none"): 3.0, (8, "none"): 1.9, (1, "sign"): 1.5, (8, "sign"): 0.5}


def swept(values: dict[Any, float], **axes: list[str]) -> Report:
    rows = [
        row(
            "leak.bits",
            layer,
            value + more,
            interval=(value + more - 0.2, value + more + 0.2),
            variant=dict(zip(("batch-size", "defense"), setting, strict=True)),
        )
        for setting, value in values.items()
        for layer, more in (("conv1", 0.0), ("fc1", -0.1))
    ]
    report = make_report(row("leak.bits", "conv1", 3.0), *rows)
    report.provenance["sweep"] = axes or {
        "batch-size": ["1", "8"],
        "defense": ["none", "sign"],
    }
    return report


def sweep(report: Report, policy: Policy | None = None) -> SweepView:
    found = view(report, policy).sweep
    assert found is not None
    return found


def test_each_setting_has_its_own_verdict() -> None:
    found = sweep(swept(VALUES))
    assert found.policy == "the default policy"
    assert [(line.setting, line.word) for line in found.lines] == [
        ("batch-size=1, defense=none", "failed"),
        ("batch-size=8, defense=none", "undecided"),
        ("batch-size=1, defense=sign", "passed"),
        ("batch-size=8, defense=sign", "passed"),
    ]
    assert found.lines[0].worst.startswith("The private attribute of a batch is inferred")
    assert found.lines[3].worst == ""


def test_another_policy_gives_other_verdicts() -> None:
    policy = Policy.model_validate(
        {"name": "strict.yaml", "rules": [{"metric": "leak.bits", "max": 0.1}]}
    )
    found = sweep(swept(VALUES), policy)
    assert {line.word for line in found.lines} == {"failed"}
    assert found.policy == "strict.yaml"


def test_curves_run_along_the_numbers_with_a_line_for_each_other_setting() -> None:
    (curves,) = sweep(swept(VALUES)).curves
    assert (curves.metric, curves.axis, curves.places) == ("leak.bits", "batch-size", {})
    assert [panel.layer for panel in curves.panels] == ["conv1", "fc1"]
    lines = curves.panels[0].lines
    assert {name: [(p.x, p.value) for p in line] for name, line in lines.items()} == {
        "defense=none": [(1.0, 3.0), (8.0, 1.9)],
        "defense=sign": [(1.0, 1.5), (8.0, 0.5)],
    }
    first = lines["defense=none"][0]
    assert (first.low, first.high) == (pytest.approx(2.8), pytest.approx(3.2))


def test_settings_that_are_texts_stand_side_by_side() -> None:
    values = {("small", "none"): 1.0, ("large", "none"): 2.0}
    (curves,) = sweep(swept(values)).curves
    assert curves.axis == "batch-size"
    assert curves.places == {0.0: "small", 1.0: "large"}


def test_a_report_that_is_no_sweep_has_no_settings() -> None:
    assert view(make_report(row("leak.bits", "conv1", 3.0))).sweep is None


def test_very_many_settings_are_cut() -> None:
    values = {(i, "none"): 1.0 for i in range(MOST_SETTINGS + 5)}
    assert len(sweep(swept(values)).lines) == MOST_SETTINGS


def test_page_and_comment_show_settings_and_curves() -> None:
    page = Html().render(swept(VALUES))
    assert page.count('<svg class="curves"') == 2
    assert page.count('class="outcome passed"') == 2
    assert page.count("<polyline") == 4
    assert page.count("<circle") == 8
    assert "<title>conv1: leak.bits along batch-size</title>" in page
    comment = format_named("markdown").render(swept(VALUES))
    assert "| batch-size=1, defense=none | ❌ FAILED |" in comment


def test_a_chart_is_drawn_of_any_values() -> None:
    for values in ({(1, "none"): 0.0}, {(1, "a"): 1e-30, (1000, "a"): -1e300}):
        assert "NaN" not in (page := Html().render(swept(values)))
        assert "nan" not in page.partition("<svg class")[2].partition("</svg>")[0]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 0.979, [0, 0.5, 1]),
        (0, 1, [0, 0.5, 1]),
        (0, 0.547, [0, 0.2, 0.4, 0.6]),
        (-0.2, 0.3, [-0.2, 0, 0.2, 0.4]),
        (0, 1797, [0, 1000, 2000]),
        (0, 0, [0, 1]),
        (-3, 0, [-3, -2, -1, 0]),
    ],
)
def test_ticks_are_round_and_hold_every_value(low: float, high: float, ticks: list[float]) -> None:
    assert round_ticks(low, high) == pytest.approx(ticks)
