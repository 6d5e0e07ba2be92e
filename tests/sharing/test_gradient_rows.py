"""Rows of gradients and their components, against dense float64."""

import pytest
import torch
from torch import Tensor

from gradaudit.sharing.gradient_rows import mix, weighted_sums
from gradaudit.sharing.principal import principal_components


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sums(values: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums by a dense matrix product."""
    chosen = torch.zeros(len(rows), len(values), dtype=torch.float64)
    chosen.scatter_add_(1, rows, weights.double())
    return chosen @ values.double()


def batches(count: int, size: int, records: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(records, (count, size), generator=generator)  # some twice in a batch
    return rows, torch.rand(count, size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 7, 900])
def test_means_of_formed_rows_in_blocks(count: int, dtype: torch.dtype) -> None:
    values = drawn(3000, 401)
    rows, weights = batches(count, 5, 3000)
    found = weighted_sums(values.to(dtype), rows, weights.to(dtype))
    assert found.dtype == dtype
    expected = sums(values, rows, weights).to(dtype)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_part_of_a_larger_tensor_is_written_to() -> None:
    values = drawn(9, 24)
    rows, weights = batches(5, 3, 9)
    into = torch.full((7, 24), 8.0, dtype=torch.float64)
    mix(values, rows, weights, into[1:6])
    torch.testing.assert_close(into[1:6], sums(values, rows, weights))
    assert (into[[0, 6]] == 8).all()


@pytest.mark.parametrize("count", [3, 12, 50])
def test_components_of_narrow_rows_are_those_of_their_covariance(count: int) -> None:
    rows = drawn(60, 12) * torch.arange(1, 13) + 5
    rows[:, 11] = rows[:, 0] - rows[:, 1]  # of rank 11
    axes, offset = principal_components(rows, count)
    kept = min(count, 11)
    expected = torch.linalg.eigh(rows.T.cov())[1].flip(1)[:, :kept]
    signs = (expected * axes).sum(dim=0).sign()
    torch.testing.assert_close(axes, expected * signs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(offset, rows.mean(dim=0) @ axes, rtol=1e-6, atol=1e-6)


def test_rows_that_are_alike_have_one_axis_of_noughts() -> None:
    axes, offset = principal_components(torch.ones(9, 4), 3)
    assert torch.equal(torch.ones(2, 4) @ axes - offset, torch.zeros(2, 1))
