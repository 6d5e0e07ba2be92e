"""Numbers as they are printed everywhere."""

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_builder import infinite_row, row, skipped_row

from gradaudit.core import text
from gradaudit.core.text import number, variant_text
from gradaudit.report import estimate

NUMBERS = [
    (0.0, "0"),
    (-0.0, "0"),
    (1.0, "1"),
    (-3.0, "-3"),
    (0.12345, "0.123"),
    (0.001, "0.00100"),
    (0.00099, "9.90e-4"),
    (1e-300, "1.00e-300"),
    (9.9996, "10.0"),
    (99.96, "100"),
    (99.95, "100"),
    (99.94, "99.9"),
    (100.4, "100"),
    (-2266.4, "-2,266"),
    (61706.0, "61,706"),
    (999999.0, "999,999"),
    (1e6, "1.00e6"),
    (-1.5e9, "-1.50e9"),
    (math.inf, "infinite"),
    (-math.inf, "-infinite"),
]


@pytest.mark.parametrize(("value", "text"), NUMBERS)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(-1e308, 1e308))
def test_a_printed_number_is_within_half_a_percent(value: float) -> None:
    printed = float(number(value).replace(",", ""))
    assert printed == pytest.approx(value, rel=0.005, abs=0)
    assert len(number(value)) <= 10


def test_estimates() -> None:
    assert estimate(row("a.b", "l", 0.5, interval=(-0.25, 1200))) == "0.500 [-0.250, 1,200]"
    assert estimate(row("a.b", "l", 0.5)) == "0.500"
    assert estimate(infinite_row("a.b", "l")) == "infinite"
    assert estimate(skipped_row("a.b", "l", "no")) == "–"


def test_variants() -> None:
    assert variant_text({"method": "dlg", "round": 2, "on": True}) == "method=dlg, round=2, on=True"


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(text).failed == 0
