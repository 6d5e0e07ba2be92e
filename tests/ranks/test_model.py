"""What a report says of ranks: the weakest method, the closest call, the union of certificates."""

from dataclasses import replace
from typing import Any

import pytest

from gradaudit.ranks.convolution import GroupRank, LayerRank
from gradaudit.ranks.matrix_free import ALPHA, Nullity
from gradaudit.ranks.model import account, weakest_method
from gradaudit.ranks.operator import Gap

CLEAR = Gap(rank=3, smallest=0.2, largest_dropped=1e-16, tolerance=1e-14)
CLOSE = Gap(rank=2, smallest=3e-10, largest_dropped=8e-11, tolerance=1e-10)
LOOK = Nullity("rows", 0, 0, looks=2, probes=9, iterations=5, residual=1e-7, smallest=1e-4)
EXACT = GroupRank(8, 8, "exact", bound=8, touched=9, filters=CLEAR, deltas=CLEAR)
DENSE = replace(EXACT, method="dense", spectrum=CLOSE)
CRAIG = replace(EXACT, method="craig", search=LOOK)
BRACKET = replace(CRAIG, low=5, method="bracket", search=replace(LOOK, high=3, smallest=None))


def test_the_weakest_group_names_the_method() -> None:
    assert weakest_method([LayerRank((EXACT, CRAIG)), LayerRank((EXACT, DENSE))]) == "craig"
    facts = account([LayerRank((EXACT, CRAIG)), LayerRank((EXACT, BRACKET))], seed=3)
    assert facts["method"] == "bracket"
    assert facts["methods"] == {"bracket": 1, "craig": 1, "exact": 2}
    assert facts["by_record"] == [[16, 16], [13, 16]]
    assert facts["bound"] == 16
    assert facts["inputs_read"] == 18


def test_an_exact_rank_needs_no_certificate() -> None:
    facts = account([LayerRank((EXACT,))], seed=0)
    assert "certificate" not in facts
    assert "methods" not in facts


def test_certificates_add_up_over_looks_and_groups() -> None:
    certificate: Any = account([LayerRank((CRAIG, CRAIG, EXACT))], seed=3)["certificate"]
    assert certificate["error_probability"] == pytest.approx(4 * ALPHA)
    assert certificate["smallest_singular_value_at_least"] == 1e-4
    assert certificate["smallest_singular_value_probability"] == pytest.approx(0.998)
    assert certificate["seed"] == 3


def test_a_bracket_states_no_smallest_singular_value() -> None:
    certificate: Any = account([LayerRank((BRACKET,))], seed=0)["certificate"]
    assert "smallest_singular_value_at_least" not in certificate


def test_singular_values_without_a_gap_are_pointed_out() -> None:
    facts: Any = account([LayerRank((DENSE,))], seed=0)
    assert "no clear gap" in facts["singular_values"]["caution"]
    assert "caution" not in facts["filters"]
