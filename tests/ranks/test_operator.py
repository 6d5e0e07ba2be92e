"""Û against U: the same row space, the adjoint, the norm, the bases."""

import pytest
import torch
from ranks.reference import HAND_MADE, NULL, Case
from torch import Tensor

from gradaudit.ranks.geometry import geometry_of
from gradaudit.ranks.operator import ReducedU, numerical_rank, row_basis
from gradaudit.ranks.sides import RowSpace, gram_inverse, input_side, row_side

UNGROUPED = [case for case in HAND_MADE if case.layer.groups == 1]


def reduced(case: Case) -> ReducedU:
    geometry = geometry_of(case.layer, case.shape)
    filters = case.layer.weight.detach().flatten(2).transpose(1, 2).flatten(1)
    live = geometry.live.repeat_interleave(geometry.channels)
    return ReducedU(geometry, row_basis(filters * live), row_basis(case.deltas.flatten(1)))


def rank(matrix: Tensor) -> int:
    values = torch.linalg.svdvals(matrix)
    return int((values > NULL * values.max()).sum())


def as_matrix(operator: ReducedU) -> Tensor:
    """Û over inputs in the order of U: channel, then position."""
    columns = operator.apply(torch.eye(operator.columns, dtype=torch.float64)).T
    channels_last = columns.unflatten(1, (-1, operator.geometry.channels))
    return channels_last.transpose(1, 2).flatten(1)


@pytest.mark.parametrize("case", UNGROUPED, ids=str)
def test_the_row_space_is_that_of_u(case: Case) -> None:
    u, reduced_u = case.u(), as_matrix(reduced(case))
    assert rank(u) == rank(torch.cat([u, reduced_u]))
    if len(reduced_u):
        assert rank(reduced_u) == rank(u)


@pytest.mark.parametrize("case", UNGROUPED, ids=str)
def test_transposed_and_bounded(case: Case) -> None:
    operator = reduced(case)
    matrix = operator.apply(torch.eye(operator.columns, dtype=torch.float64)).T
    if not len(matrix):
        return
    transposed = operator.apply_transposed(torch.eye(operator.height, dtype=torch.float64))
    torch.testing.assert_close(transposed, matrix)
    assert float(torch.linalg.matrix_norm(matrix, 2)) <= operator.geometry.scale * (1 + 1e-12)


@pytest.mark.parametrize("case", UNGROUPED, ids=str)
def test_the_sides_have_the_dimension_that_their_probes_span(case: Case) -> None:
    operator = reduced(case)
    generator = torch.Generator().manual_seed(0)
    for side in (input_side(RowSpace(operator)), row_side(RowSpace(operator))):
        probes = side.probes(side.dimension + 5, generator)
        if probes.numel():
            assert rank(probes) == side.dimension


@pytest.mark.parametrize("case", UNGROUPED, ids=str)
def test_the_rows_side_holds_all_that_u_gives(case: Case) -> None:
    operator = reduced(case)
    outputs = operator.apply(torch.eye(operator.columns, dtype=torch.float64))
    projected = RowSpace(operator).project(outputs.clone())
    torch.testing.assert_close(projected, outputs)


def test_the_preconditioner_inverts_the_filters_gram_matrix() -> None:
    case = next(case for case in HAND_MADE if case.name == "widening")
    operator = reduced(case)
    solve = gram_inverse(operator)
    assert solve is not None
    identity = torch.eye(operator.columns, dtype=torch.float64)
    w = operator.apply(identity).T[: operator.geometry.positions * operator.filters.rank]
    shift = 1e-10 * operator.geometry.scale**2
    torch.testing.assert_close(
        solve(identity) @ (w.T @ w + shift * identity), identity, atol=1e-6, rtol=0
    )


def test_rows_of_all_lengths_count_alike_and_rounding_does_not() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    scaled = rows * torch.tensor([1.0, 1e-4, 1e-8, 1e-18], dtype=torch.float64)[:, None]
    assert row_basis(scaled).rank == 3
    basis = row_basis(torch.cat([scaled[:3], scaled[:1] + scaled[1:2]]))
    assert basis.rank == 3
    torch.testing.assert_close(basis.rows @ basis.rows.T, torch.eye(3, dtype=torch.float64))
    assert rank(torch.cat([basis.rows, rows[:3]])) == 3


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (5, 5)])
@pytest.mark.parametrize("true_rank", [0, 1, 2, 3])
def test_numerical_rank_of_products(shape: tuple[int, int], true_rank: int) -> None:
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(shape[0], true_rank, generator=generator, dtype=torch.float64)
    right = torch.randn(true_rank, shape[1], generator=generator, dtype=torch.float64)
    assert numerical_rank(left @ right) == true_rank
    assert row_basis(left @ right).rank == true_rank
