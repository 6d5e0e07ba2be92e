from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report_builder import make_report, row

from gradaudit.report import Report
from gradaudit.sweeping import curves
from gradaudit.sweeping.curves import draw_sweep, loess
from gradaudit.sweeping.sweep_table import write_table

VALUES = {("conv1", "sign", 1): 0.7, ("conv1", "sign", 4): 0.6, ("conv1", "prune:0.9", 1): 0.611}
VALUES |= {("fc2", "sign", 1): 0.2, ("fc2", "sign", 4): 0.3, ("conv1", "prune:0.9", 4): 0.547}


@pytest.fixture
def swept() -> Report:
    """A sweep over a text and a number, with a value that is missing."""
    rows = [
        row(
            "vinfo.auroc",
            layer,
            value,
            variant={"defense": defense, "batch-size": size},
            interval=(value - 0.1, value + 0.2),
            confidence=0.95,
        )
        for (layer, defense, size), value in VALUES.items()
    ]
    report = make_report(*rows)
    sweep = {"defense": ["sign", "prune:0.9"], "batch-size": ["4", "1"]}
    return report.model_copy(update={"provenance": {**report.provenance, "sweep": sweep}})


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    """The panels that are drawn."""
    drawn: list[Axes] = []

    @contextmanager
    def keep(path: Path, count: int, **how: Any) -> Iterator[list[Axes]]:
        drawn.extend(Figure().subplots(1, count, squeeze=False)[0])
        yield drawn

    monkeypatch.setattr(curves, "picture", keep)
    return drawn


def test_values_are_drawn_as_measured_along_the_axis_of_numbers(
    swept: Report, panels: list[Axes]
) -> None:
    draw_sweep(Path("x.svg"), swept, "vinfo.auroc", chance=0.5)
    assert [panel.get_title() for panel in panels] == ["conv1", "fc2"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in panels[0].lines}  # type: ignore[union-attr]
    assert [height for _, height in lines.pop("chance")] == [0.5, 0.5]
    assert lines == {
        "defense sign": [[1, 0.7], [4, 0.6]],
        "defense prune:0.9": [[1, 0.611], [4, 0.547]],
    }
    bars = [s.tolist() for c in panels[1].collections for s in c.get_segments()]  # type: ignore[attr-defined]
    np.testing.assert_allclose(bars, [[[1, 0.1], [1, 0.4]], [[4, 0.2], [4, 0.5]]])
    assert panels[1].lines[0].get_color() == panels[0].lines[0].get_color()


@pytest.mark.parametrize("sizes", [("1", "4", "16"), ("1", "2")])
def test_the_axis_is_marked_at_the_sizes_that_were_measured(
    sizes: tuple[str, ...], panels: list[Axes]
) -> None:
    rows = [row("vinfo.auroc", "fc1", 0.5, variant={"batch-size": int(size)}) for size in sizes]
    report = make_report(*rows)
    report.provenance["sweep"] = {"batch-size": list(sizes)}
    draw_sweep(Path("x.svg"), report, "vinfo.auroc")
    assert [label.get_text() for label in panels[0].get_xticklabels()] == list(sizes)
    assert panels[0].get_xscale() == ("log" if "16" in sizes else "linear")


def test_an_axis_names_the_unit(panels: list[Axes]) -> None:
    rows = [row("vinfo.vinfo", "fc1", 0.5, variant={"k": k}, unit="nat") for k in (1, 2)]
    report = make_report(*rows)
    report.provenance["sweep"] = {"k": ["1", "2"]}
    draw_sweep(Path("x.svg"), report, "vinfo.vinfo")
    assert panels[0].get_ylabel() == "vinfo.\nvinfo (nat)"


@pytest.mark.slow
def test_a_picture_for_a_paper_is_a_pdf_of_the_same_bytes(swept: Report, tmp_path: Path) -> None:
    files = [tmp_path / "one.pdf", tmp_path / "two.pdf"]
    for file in files:
        draw_sweep(file, swept, "vinfo.auroc")
    assert files[0].read_bytes().startswith(b"%PDF")
    assert files[0].read_bytes() == files[1].read_bytes()


def test_relative_values_have_their_setting_s_largest_at_one(
    swept: Report, panels: list[Axes]
) -> None:
    draw_sweep(Path("x.svg"), swept, "vinfo.auroc", relative=True)
    points = {line.get_label(): line.get_ydata() for line in panels[0].lines}
    np.testing.assert_allclose(points["defense sign, batch-size 1"], [1, 0.2 / 0.7])


def test_a_metric_is_written_as_a_table(swept: Report, tmp_path: Path) -> None:
    write_table(tmp_path / "t.md", swept, "vinfo.auroc")
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert lines[2] == "| sign | 1 | conv1 | 0.700 | [0.600, 0.900] |"


def test_a_straight_line_stays_one() -> None:
    x = np.array([0.0, 0.5, 1, 1, 2, 3, 3.5, 5])
    at = np.linspace(-1, 6, 17)
    np.testing.assert_allclose(loess(x, 3 - 2 * x, at, span=0.6), 3 - 2 * at, atol=1e-12)


@pytest.mark.parametrize("span", [0.3, 0.75, 1.0])
def test_each_place_is_a_weighted_least_squares_fit(span: float) -> None:
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.uniform(0, 10, 25)), rng.normal(size=25)
    at = np.array([0.3, 4.2, 9.9])
    expected = []
    for place in at:
        reach = np.sort(np.abs(x - place))[int(np.ceil(span * 25)) - 1]
        weights = np.clip(1 - (np.abs(x - place) / reach) ** 3, 0, None) ** 3
        expected.append(np.polyval(np.polyfit(x, y, 1, w=np.sqrt(weights)), place))
    np.testing.assert_allclose(loess(x, y, at, span), expected, atol=1e-9)


def test_points_at_one_place_are_averaged() -> None:
    x, y = np.zeros(4), np.array([1.0, 2, 3, 6])
    np.testing.assert_allclose(loess(x, y, np.array([0.0])), [3.0])
    layers = np.repeat([0.0, 1, 2], 2)
    few = loess(layers, np.array([1.0, 3, 5, 5, 0, 2]), np.array([0.0, 1, 2]), span=0.3)
    np.testing.assert_allclose(few, [2, 5, 1])
