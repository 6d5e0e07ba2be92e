"""Strips: where values lie on an axis, and what is drawn of a number."""

import math
import re
from typing import Any

import pytest
from report_builder import infinite_row, row, skipped_row

from gradaudit.core.text import UNBOUNDED
from gradaudit.formats.html import StripAxis, axis_of, cell_words, shape, strip
from gradaudit.view import Cell, LayerLine, MetricColumn
from gradaudit.view.cells import PermutationFloor

AUROC = MetricColumn("leak.bits", sign=1, chance=0.5, limits=(("high", 0.75),))


def cell(value: float, interval: Any = None, **more: Any) -> Cell:
    extra = {"interval": interval} if interval else {}
    return Cell(row("leak.bits", "fc1", value, **extra), **more)


def test_an_axis_holds_all_that_is_drawn() -> None:
    floor = PermutationFloor(0.4, (0.3, 0.5))
    axis = axis_of(AUROC, [cell(0.9, (0.8, 0.99), floor=floor), cell(0.6)])
    assert (axis.low, axis.high, axis.logarithmic, axis.reversed) == (0.3, 0.99, False, False)
    assert axis.at(0.3) == pytest.approx(4)
    assert axis.at(0.99) == pytest.approx(96)
    assert axis.at(0.645) == pytest.approx(50)


def test_an_end_that_nothing_bounds_is_drawn_at_the_side() -> None:
    open_ended = cell(3.0, (1.0, UNBOUNDED))
    axis = axis_of(AUROC, [open_ended, cell(4.0)])
    assert (axis.low, axis.high) == (0.5, 4.0)
    assert axis.at(UNBOUNDED) == pytest.approx(96)
    assert cell_words(open_ended) == "3 [1, infinite], within its limits"


def test_worse_is_at_the_right() -> None:
    falling = MetricColumn("leak.effort", sign=-1, limits=(("medium", 10.0),))
    axis = axis_of(falling, [cell(2.0), cell(30.0)])
    assert axis.at(2.0) > axis.at(10.0) > axis.at(30.0)


def test_values_of_many_sizes_are_on_a_logarithmic_axis() -> None:
    axis = axis_of(MetricColumn("x.y", sign=1), [cell(1e-3), cell(1.0), cell(1e3)])
    assert axis.logarithmic
    assert axis.at(1.0) == pytest.approx(50)
    assert axis.ticks() == pytest.approx([1e-3, 1e-1, 1e1, 1e3])
    assert axis.at(0.0) == axis.at(1e-3)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [0, 0.5, 1]),
        (0.42, 0.99, [0.6, 0.8]),
        (-3.0, 36.0, [0, 10, 20, 30]),
        (0.0, 1e-7, [0, 5e-8, 1e-7]),
    ],
)
def test_ticks_are_round_and_few(low: float, high: float, ticks: list[float]) -> None:
    assert StripAxis(low, high).ticks() == pytest.approx(ticks)


@pytest.mark.parametrize("values", [[], [0.0], [5.0, 5.0], [1e-300, 1e300], [-1e300, 1e300]])
def test_any_values_have_a_place(values: list[float]) -> None:
    axis = axis_of(MetricColumn("x.y"), [cell(value) for value in values])
    for value in [*values, 0.0, 1.0]:
        assert 0 <= axis.at(value) <= 100
    assert len(axis.ticks()) <= 8


def drawn(shown: Cell, column: MetricColumn = AUROC) -> str:
    line = LayerLine("fc1", "Linear", 1, "high", None)
    return str(strip(line, shown, column, axis_of(column, [shown, cell(0.5)])))


def test_a_strip_has_its_marks() -> None:
    svg = drawn(cell(0.9, (0.8, 1.0), level="high", floor=PermutationFloor(0.4, (0.3, 0.5))))
    assert "<title>fc1: 0.900 [0.800, 1], permuted 0.400 [0.300, 0.500], high</title>" in svg
    assert [x for x in re.findall(r'class="([^"]+)"', svg) if x != "strip"] == [
        "chance",
        "limit high",
        "floor",
        "interval",
        "dot high",
    ]
    assert 'class="dot high hollow"' in drawn(cell(0.8, (0.7, 0.9), possible="high"))
    assert 'class="dot low"' in drawn(cell(0.6))
    assert 'class="dot none hollow"' in drawn(cell(0.6, judged=False))


@pytest.mark.parametrize(
    ("level", "kind"),
    [
        ("high", "high"),
        ("medium", "medium"),
        ("low", "low"),
        ("unknown", "none hollow"),
        ("not tested", "none hollow"),
        (None, "none hollow"),
    ],
)
def test_the_sign_of_what_shows_nothing_is_grey_and_hollow(level: Any, kind: str) -> None:
    assert f'class="dot {kind}"' in shape(level)
    assert f'class="dot {kind.split()[0]} hollow"' in shape(level, hollow=True)


def test_a_number_is_within_its_limits_where_a_rule_says_so_alone() -> None:
    assert cell_words(cell(0.6)) == "0.600, within its limits"
    assert cell_words(cell(0.6, judged=False)) == "0.600, no rule judged it"
    assert (
        cell_words(cell(0.6, (0.5, 0.8), possible="high"))
        == "0.600 [0.500, 0.800], high not excluded"
    )


def test_what_has_no_number_says_so() -> None:
    assert "not measured" in drawn(Cell(skipped_row("leak.bits", "fc1", "no")))
    assert cell_words(Cell()) == "no row"
    infinite = Cell(infinite_row("leak.bits", "fc1"), level="high")
    assert infinite.row is not None
    assert infinite.row.number == math.inf
    assert '<svg x="96.0%"' in drawn(infinite)


def test_a_name_in_a_strip_stays_text() -> None:
    line = LayerLine("</title><script>", "Linear", 1, "high", None)
    assert "<script>" not in strip(line, cell(1.0), AUROC, axis_of(AUROC, [cell(1.0)]))
