"""Equations of output gradients alone, against singular values of U as a dense matrix."""

import math
from dataclasses import replace

import pytest
import torch
from ranks.reference import HAND_MADE, Case, plain, reduced
from torch import Tensor, nn

from gradaudit.ranks.operator import NULL, Equations, equations_of
from gradaudit.ranks.sides import RowSpace, input_side

UNGROUPED = [case for case in HAND_MADE if case.layer.groups == 1 and case.deltas.any()]
WIDE = plain("wide", nn.Conv2d(3, 2, 3, padding=1), 6, 5)


def of(case: Case) -> Equations | None:
    return equations_of(reduced(case), math.inf)


def by_gradients(case: Case) -> Tensor:
    """The rows of U that are ∇_Z J's, by (channel, position) of the input."""
    rows = case.u[case.deltas.numel() :]
    return rows[rows.any(dim=1)]


@pytest.mark.parametrize("case", UNGROUPED, ids=str)
def test_what_gradients_determine_is_the_rank_of_their_rows(case: Case) -> None:
    found = of(case)
    assert found is None or found.determined == torch.linalg.matrix_rank(by_gradients(case))


@pytest.mark.parametrize("case", [WIDE, plain("deep", nn.Conv2d(3, 9, 1), 6, 5)], ids=str)
def test_the_projection_is_onto_what_the_rows_leave(case: Case) -> None:
    """By the basis of S and, where S is more than half of the space, by that of S^⊥."""
    found = of(case)
    assert found is not None
    vectors = torch.randn(4, 90, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = by_gradients(case).unflatten(1, (3, 30)).transpose(1, 2).flatten(1)
    expected = vectors - vectors @ torch.linalg.pinv(rows) @ rows
    torch.testing.assert_close(found.project(vectors), expected)


def test_the_least_singular_value_with_the_equations_is_bounded() -> None:
    found, operator = of(WIDE), reduced(WIDE)
    assert found is not None
    side = input_side(RowSpace(operator))
    assert side.known == found.determined
    assert side.dimension == 90 - side.known
    scale = operator.geometry.scale
    unit = torch.eye(90, dtype=torch.float64)
    space = torch.linalg.svd(side.confine(unit)).Vh[: side.dimension]
    beside = float(torch.linalg.svdvals(side.against(space))[-1]) / scale
    truth = float(torch.linalg.svdvals(operator.apply(unit))[-1]) / scale
    assert 0.01 * truth < side.of_whole(beside) <= truth


def test_equations_that_are_too_dear_or_not_clear_stay_where_they_are() -> None:
    operator = reduced(WIDE)
    assert equations_of(operator, 4.0 * 30 * 18**2 + 24.0 * 18**3) is not None
    assert equations_of(operator, 4.0 * 30 * 18**2 + 24.0 * 18**3 - 1) is None
    near = torch.zeros(2, 6, 5, dtype=torch.float64)
    near[0, 2, 2], near[1, 0, 2] = 1, 1
    near[1, 2, 1] = 1e-7
    assert of(replace(WIDE, deltas=near)) is None, "a tap that misses the edge reads 1e-7 alone"


def test_gradients_that_determine_all_are_a_theorem() -> None:
    """Nine gradients by nine taps at thirty positions; the filters know 270 of 1,200 inputs."""
    found = plain("all", nn.Conv2d(40, 9, 3, padding=1), 6, 5).rank("structured").groups[0]
    assert (found.low, found.high, found.method) == (1200, 1200, "exact")
    assert found.spectrum is not None
    assert found.spectrum.rank == 30
    assert found.spectrum.smallest > NULL
