"""Û against U: the same row space, the adjoint, the norm, the bases."""

import math
from typing import Any

import pytest
import torch
from ranks.reference import HAND_MADE, NULL, Case, reduced
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradaudit.ranks.operator import ReducedU, SpectralGap, numerical_rank, row_basis
from gradaudit.ranks.sides import RowSpace, input_side, row_side

EPSILON = 2.0**-52
UNGROUPED = [case for case in HAND_MADE if case.layer.groups == 1]


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
    u, reduced_u = case.u, as_matrix(reduced(case))
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


@pytest.mark.parametrize("shape", [(2, 5), (5, 2)])
@pytest.mark.parametrize(
    ("second", "rank_"), [(1e-5, 2), (5.1 * EPSILON, 2), (4.9 * EPSILON, 1), (0, 1)]
)
def test_rank_is_decided_at_the_rounding_of_the_longer_side(
    shape: tuple[int, int], second: float, rank_: int
) -> None:
    matrix = torch.zeros(shape, dtype=torch.float64)
    matrix[0, 0], matrix[1, 1] = 3, 3 * second
    assert numerical_rank(matrix) == rank_


def test_a_matrix_without_rows_or_columns_has_rank_zero() -> None:
    assert numerical_rank(torch.ones(0, 3)) == numerical_rank(torch.ones(3, 0)) == 0


def test_rows_are_kept_above_the_rounding_of_the_longest() -> None:
    """Of 4 columns: beside a row of length 2, one of 8 roundings is zero."""
    rows = torch.diag(torch.tensor([2.0, 9 * EPSILON, 8 * EPSILON, 0.0], dtype=torch.float64))
    basis = row_basis(rows)
    torch.testing.assert_close(basis.rows.abs(), torch.eye(4, dtype=torch.float64)[:2])
    assert basis.gap == SpectralGap(2, 1.0, 0.0, 4 * EPSILON)
    assert row_basis(0 * rows).gap == SpectralGap(0, 1.0, 0.0, 4 * EPSILON)
    assert row_basis(0 * rows).rows.shape == (0, 4)
    assert row_basis(rows[:, :1].expand(4, 7)).gap.tolerance == 7 * EPSILON


@pytest.mark.parametrize("rows", [2, 5])
def test_a_basis_tells_the_values_at_its_rank(rows: int) -> None:
    """Two unit rows at an angle θ have the singular values √(1 ± cos θ)."""
    angle = torch.tensor(0.5, dtype=torch.float64)
    pair = torch.stack([torch.tensor([1.0, 0, 0]).double(), torch.zeros(3).double()])
    pair[1, :2] = torch.stack([angle.cos(), angle.sin()])
    alike = torch.cat([pair, pair[:1].expand(rows - 2, 3)])
    values = torch.linalg.svdvals(alike)
    gap = row_basis(5 * alike).gap
    assert gap.rank == 2
    assert gap.smallest == pytest.approx(float(values[1] / values[0]))
    assert gap.largest_dropped < 1e-15


def test_a_gap_lies_on_both_sides_of_the_line() -> None:
    values = torch.tensor([1.0, 0.5, 0.1, 0.01], dtype=torch.float64)
    assert SpectralGap.at(values, 0.1) == SpectralGap(2, 0.5, 0.1, 0.1)
    assert SpectralGap.at(values, 0.001) == SpectralGap(4, 0.01, 0.0, 0.001)
    assert SpectralGap.at(values[:0], 0.1) == SpectralGap(0, 1.0, 0.0, 0.1)
    assert SpectralGap.at(0 * values, 0.1) == SpectralGap(0, 1.0, 0.0, 0.1)


@pytest.mark.parametrize("name", ["widening", "narrowing", "full-padding", "nothing", "1x1"])
def test_singular_values_are_those_of_the_matrix_over_im2col(name: str) -> None:
    operator = reduced(next(case for case in HAND_MADE if case.name == name))
    gap, matrix = operator.singular_values(), as_matrix(operator)
    assert gap.rank == (rank(matrix) if len(matrix) else 0)
    assert gap.tolerance == NULL
    if gap.rank:
        values = torch.linalg.svdvals(matrix) / operator.geometry.scale
        assert gap.smallest == pytest.approx(float(values[gap.rank - 1]))


@pytest.mark.parametrize("elements", [1, 18, 40, 1 << 19])
def test_work_in_pieces_changes_nothing(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradaudit.ranks.operator._PATCH_ELEMENTS", elements)
    case = next(case for case in HAND_MADE if case.name == "full-padding")
    operator, pieces = reduced(case), -(-49 // max(1, elements // 18))
    assert len(operator._chunks) == pieces
    u, matrix = case.u, as_matrix(operator)
    assert rank(torch.cat([u, matrix])) == rank(u) == rank(matrix)


class Products(TorchDispatchMode):
    """Counts the floating-point operations of matrix products."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_):
            left, right = args[-2:]
            self.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["widening", "narrowing", "strided"])
def test_work_is_that_of_the_products_and_five_passes_over_the_patches(name: str) -> None:
    operator = reduced(next(case for case in HAND_MADE if case.name == name))
    patches = operator.geometry.positions * operator.width
    for apply, length in (
        (operator.apply, operator.columns),
        (operator.apply_transposed, operator.height),
    ):
        with Products() as counted:
            apply(torch.ones(1, length, dtype=torch.float64))
        assert operator.flops == counted.flops + 10 * patches + 4_000_000


def test_the_sizes_of_u(monkeypatch: pytest.MonkeyPatch) -> None:
    """25 positions, 5 filters of 18 taps and channels, 5 gradients; 98 inputs."""
    operator = reduced(next(case for case in HAND_MADE if case.name == "widening"))
    assert (operator.columns, operator.width) == (2 * 49, 9 * 2)
    assert operator.height == 25 * 5 + 5 * 18
    assert operator.elements == 98 * 215
    assert operator.dense_flops == 6 * 215 * 98**2 + 98 * operator.flops
    monkeypatch.setattr("gradaudit.ranks.operator.MOST_ELEMENTS", 98 * 215)
    assert operator.dense_flops < math.inf
    monkeypatch.setattr("gradaudit.ranks.operator.MOST_ELEMENTS", 98 * 215 - 1)
    assert operator.dense_flops == math.inf
