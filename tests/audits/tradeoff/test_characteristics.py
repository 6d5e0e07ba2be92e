"""The curves' files."""

from pathlib import Path

import pytest

from gradaudit.audits.tradeoff.characteristics import (
    PanelPoint,
    Value,
    draw_advantages,
    draw_characteristics,
    expect_panels,
    positions,
)
from gradaudit.errors import UsageError

POINTS = [
    PanelPoint(1.2, Value(0.8, (0.7, 0.9)), {"reconstruct": Value(0.2), "tracing": Value(0.0)}),
    PanelPoint(0.1, Value(0.3), {"reconstruct": Value(1.0), "tracing": Value(0.9, (0.8, 1.0))}),
    PanelPoint(None, Value(0.9), {"reconstruct": Value(0.0), "tracing": Value(0.0)}),
]


@pytest.mark.slow
def test_characteristics_show_both_axes_every_game_and_title(tmp_path: Path) -> None:
    path = tmp_path / "ppc.svg"
    draw_characteristics(path, {"dp <x>": POINTS, "spn": POINTS[:2]})
    text = path.read_text()
    for word in (
        "accuracy",
        "distance",
        "distance, reconstruct",
        "distance, tracing",
        "log10(‖B‖/‖E‖ + 1)",
        "dp &lt;x&gt;",
        "spn",
        "no perturbation",
    ):
        assert f">{word}<" in text, word
    draw_characteristics(tmp_path / "again.svg", {"dp <x>": POINTS, "spn": POINTS[:2]})
    assert (tmp_path / "again.svg").read_text() == text


def test_nothing_perturbed_stands_right_of_all_others() -> None:
    assert positions([1.2, None, 0.1]).tolist() == [1.2, 1.7, 0.1]


@pytest.mark.slow
def test_advantages_show_every_adversary_and_mechanism(tmp_path: Path) -> None:
    path = tmp_path / "property.svg"
    pairs = [(Value(0.8, (0.7, 0.9)), Value(0.3, (0.2, 0.4))), (Value(0.5), Value(0.0))]
    draw_advantages(path, {"adaptive": {"sign": pairs}, "static": {"sign": pairs}})
    text = path.read_text()
    for word in ("adaptive", "static", "sign", "advantage", "accuracy"):
        assert f">{word}<" in text, word


def test_too_many_panels_are_refused() -> None:
    expect_panels(6)
    with pytest.raises(UsageError, match="7 panels"):
        expect_panels(7)
