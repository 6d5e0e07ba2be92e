"""The linear system of a convolution against U: row space, Gram matrices, ranks, bases."""

import pytest
import torch
from ranks.reference import HAND_MADE, NULL, Case, system_of
from torch import Tensor

from gradaudit.ranks.linear_system import (
    ConvolutionSystem,
    SpectralGap,
    is_definite,
    numerical_rank,
    row_basis,
)

EPSILON = 2.0**-52
UNGROUPED = [case for case in HAND_MADE if case.layer.groups == 1]


def rank(matrix: Tensor) -> int:
    values = torch.linalg.svdvals(matrix)
    return int((values > NULL * values.max()).sum())


def dense(system: ConvolutionSystem) -> Tensor:
    return torch.from_numpy(system.matrix().toarray())


@pytest.mark.parametrize("case", UNGROUPED, ids=str)
def test_the_row_space_is_that_of_u(case: Case) -> None:
    u, matrix = case.u, dense(system_of(case))
    assert rank(u) == rank(torch.cat([u, matrix]))
    if len(matrix):
        assert rank(matrix) == rank(u)


@pytest.mark.parametrize("case", UNGROUPED, ids=str)
def test_the_gram_matrix_is_that_of_the_inputs_read(case: Case) -> None:
    system, matrix = system_of(case), dense(system_of(case))
    gram, read = matrix.T @ matrix, matrix.any(dim=0)
    geometry = system.geometry
    order = torch.arange(system.columns).view(geometry.channels, -1).T[geometry.reads > 0].flatten()
    assert len(order) == geometry.touched >= int(read.sum())
    torch.testing.assert_close(system.gram(), gram[order][:, order])


@pytest.mark.parametrize("case", UNGROUPED, ids=str)
def test_one_channels_gram_matrix_is_that_of_the_output_gradients(case: Case) -> None:
    system = system_of(case)
    geometry = system.geometry
    rows = dense(system)[geometry.positions * system.filters.rank :]
    rows = rows.view(-1, geometry.channels, geometry.taps, geometry.channels, geometry.size)
    first = rows[:, 0, :, 0].flatten(0, 1)[:, geometry.reads > 0]
    torch.testing.assert_close(system.channel_gram(), first.T @ first)


@pytest.mark.parametrize("case", UNGROUPED, ids=str)
def test_eigenvalues_above_rounding_never_exceed_the_rank(case: Case) -> None:
    """By the rows' side, the inputs' side and, where the bound is met, a Cholesky factor."""
    system = system_of(case)
    if not system.side:
        return
    least = system.least_rank(case.true_rank)
    assert least <= case.true_rank
    assert least == int((torch.linalg.svdvals(dense(system)) > 1e-6).sum())


def test_a_definite_matrix_is_told_from_a_singular_one_by_rounding() -> None:
    """Of two eigenvalues 1 and λ the trace is 1 + λ, and the line three roundings of it."""
    for value, definite in ((1.0, True), (4 * EPSILON, True), (2 * EPSILON, False), (0.0, False)):
        matrix = torch.diag(torch.tensor([1.0, value], dtype=torch.float64))
        assert is_definite(matrix) is definite, value


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
    system = system_of(next(case for case in HAND_MADE if case.name == name))
    gap, matrix = system.singular_values(), dense(system)
    assert gap.rank == (rank(matrix) if len(matrix) else 0)
    assert gap.tolerance == NULL
    if gap.rank:
        values = torch.linalg.svdvals(matrix) / system.geometry.scale
        assert gap.smallest == pytest.approx(float(values[gap.rank - 1]))
        assert values[0] <= 2**0.5 * (1 + 1e-12)


def test_the_sizes_of_u() -> None:
    """25 positions, 5 filters of 18 taps and channels, 5 gradients; 98 inputs."""
    system = system_of(next(case for case in HAND_MADE if case.name == "widening"))
    assert (system.columns, system.width) == (2 * 49, 9 * 2)
    assert system.height == 25 * 5 + 5 * 18
    assert system.dense_flops == 2 * 215 * 98**2 + 6 * 98**3
    assert system.gram_flops(98) == pytest.approx(98**3 / 3 + 20 * 25 * 18**2)
    assert system.gram_flops(97) == 4 * 98**3 + 20 * 25 * 18**2
