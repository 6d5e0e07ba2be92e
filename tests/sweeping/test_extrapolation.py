"""Values beyond a sweep's sizes, against the model's own law and what breaks it."""

import json
from pathlib import Path

import numpy as np
import pytest
from report_builder import make_report, row
from scipy.special import ndtr, ndtri

from gradaudit.audits import Metric
from gradaudit.audits.vinfo import Vinfo
from gradaudit.judging import Policy, gate
from gradaudit.report import Measurement, Report
from gradaudit.sweeping import extrapolation
from gradaudit.sweeping.extrapolation import LAWS, Curve, extrapolate
from gradaudit.view.charts.plots import chart
from gradaudit.view.charts.sweep import sweep_of
from tests.command_line import run

SIZES = (1, 2, 4, 8, 16)
AUROC = Metric(id="auroc", title="", riskier="higher", chance=0.5)


def measured(values: list[float], error: float = 0.02, sizes: tuple[int, ...] = SIZES) -> Report:
    rows = [
        row(
            "vinfo.auroc",
            "fc1",
            value,
            variant={"batch-size": size},
            interval=(max(0.0, value - 2 * error), min(1.0, value + 2 * error)),
            confidence=0.95,
        )
        for size, value in zip(sizes, values, strict=True)
    ]
    report = make_report(*rows)
    sweep = {"batch-size": list(map(str, sizes))}
    return report.model_copy(update={"provenance": {**report.provenance, "sweep": sweep}})


def at(report: Report, size: int = 64) -> Measurement:
    (made,) = extrapolate(report, Vinfo, "batch-size", size).rows[len(report.rows) :]
    return made


def test_a_prediction_is_the_gaussian_posterior_of_its_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one law and drift: the closed form of a linear model, by precisions."""
    monkeypatch.setattr(extrapolation, "LAWS", {"√k": LAWS["√k"]})
    monkeypatch.setattr(extrapolation, "DRIFTS", np.array([1e-6]))
    k, error = np.array(SIZES, float), np.full(5, 0.05)
    y = 0.1 + 0.4 * np.sqrt(k) + np.array([0.02, -0.03, 0.01, 0.04, -0.02])
    found = Curve(extrapolation.PROBIT, k, y, error).predict(64)
    h = (np.sqrt(k) - 1) / 3
    x = np.column_stack([np.ones(5), h])
    precision = x.T @ x / 0.05**2 + np.diag([1 / 100, 1 / extrapolation.SLOPE**2])
    new = np.array([1.0, 7 / 3])
    mean = new @ np.linalg.solve(precision, x.T @ y / 0.05**2)
    deviation = np.sqrt(new @ np.linalg.solve(precision, new) + 0.05**2)
    assert found.value == pytest.approx(ndtr(mean), abs=1e-6)
    assert found.low == pytest.approx(ndtr(mean + ndtri(0.025) * deviation), abs=1e-6)
    assert found.high == pytest.approx(ndtr(mean - ndtri(0.025) * deviation), abs=1e-6)


@pytest.mark.slow
def test_intervals_hold_new_measurements_of_what_follows_a_law() -> None:
    """95 % of intervals at four times the largest size hold; 150 curves of d' = .3 √k and noise."""
    draws, held = np.random.default_rng(0), 0
    for _ in range(150):
        y = 0.1 + 0.3 * np.sqrt([*SIZES, 64]) + 0.1 * draws.normal(size=6)
        curve = Curve(extrapolation.PROBIT, np.array(SIZES, float), y[:5], np.full(5, 0.1))
        found = curve.predict(64)
        held += found.low <= ndtr(y[5]) <= found.high
    assert held / 150 >= 0.9


def test_the_interval_widens_with_the_distance_and_names_its_law() -> None:
    report = measured([float(ndtr(0.2 * np.sqrt(k))) for k in SIZES])
    near, far = at(report, 32), at(report, 128)
    widths = [np.ptp(ndtri(row.interval)) for row in (near, far)]
    assert widths[0] < widths[1]
    said = near.details["extrapolated"]
    assert isinstance(said, dict)
    assert (said["law"], said["inside"]) == ("√k", True)
    assert said["measured"] == [*SIZES]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([0.6, 0.6, 0.6, 0.6, 0.99], "are not as the smaller ones predict"),
        ([1.0, 1.0, 1.0, 1.0, 1.0], "not yet at an end of its range, at 0 sizes"),
        ([1.0, 1.0, 1.0, 0.9, 0.8], "at 2 sizes, fewer than 4"),
    ],
)
def test_what_does_not_hold_out_is_refused(values: list[float], why: str) -> None:
    made = at(measured(values, error=0.005))
    assert made.status == "skipped"
    assert why in (made.reason or "")


def test_no_rule_judges_what_was_extrapolated() -> None:
    """Neither as part of a headline nor by its variant; nor has its setting a verdict."""
    report = extrapolate(measured([0.51, 0.5, 0.52, 0.51, 0.5]), Vinfo, "batch-size", 64)
    rule = {"metric": "vinfo.auroc", "max": 0.99, "variant": {"batch-size": 64}}
    judged = gate(report, Policy.model_validate({"rules": [rule]}))
    assert {finding.outcome for finding in judged.findings} == {"unmeasured"}
    view = sweep_of(report, None)
    assert view is not None
    assert [line.setting for line in view.lines] == [f"batch-size={size}" for size in SIZES]
    (curves,) = view.curves
    drawn = chart(curves, curves.panels[0])
    assert drawn.count('class="band"') == 1
    assert drawn.count("<circle") == len(SIZES)


@pytest.mark.slow
def test_the_command_line_predicts_a_size_that_it_does_not_attack(tmp_path: Path) -> None:
    report = tmp_path / "sweep.json"
    done = run(
        *("sweep", "attack", "record", "-m", "zoo:mlp?inputs=64&classes=10", "-d", "digits"),
        *("--layer", "output", "--updates", 40, "--candidates", 80, "--shadow", 100, "-q"),
        *("--over", "batch-size=16,24,32,48", "--extrapolate", "batch-size=96", "-o", report),
    )
    assert done.status in (0, 1), done.err
    rows = json.loads(report.read_text(encoding="utf-8"))["measurements"]
    found = {
        row["variant"].get("batch-size"): row
        for row in rows
        if (row["metric"], row["layer"]) == ("record_auroc", "output")
    }
    predicted = found[96]
    assert predicted["details"]["extrapolated"]["measured"] == [16, 24, 32, 48]
    low, high = predicted["interval"]
    assert 0.5 < low < predicted["value"] < high < found[16]["value"]
