"""Joint coordinates and leading directions against singular value decompositions."""

import numpy as np
import pytest
from numpy.typing import NDArray

from gradaudit.audits.subspace import comparing
from gradaudit.audits.subspace.comparing import (
    directions_holding,
    joint_triangle,
    leading_directions,
    numerical_rank,
    principal_coordinates,
)

Array = NDArray[np.float64]


def matrix(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("slab", [1, comparing._SLAB], ids=["in slabs", "at once"])
@pytest.mark.parametrize("ends", [[], [1], [3, 40, 41], [100]])
def test_a_triangle_by_blocks_keeps_inner_products(
    ends: list[int], slab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "_SLAB", slab)
    vectors = matrix(12, 150)
    triangle: Array | None = None
    for block in np.split(vectors, ends, axis=1):
        triangle = joint_triangle(triangle, block)
    assert triangle is not None
    assert triangle.shape == (12, 12)
    np.testing.assert_allclose(triangle @ triangle.T, vectors @ vectors.T, atol=1e-11)


def test_a_triangle_keeps_what_a_gram_matrix_would_lose() -> None:
    vectors = matrix(3, 90)
    vectors[2] = vectors[0] + 1e-11 * vectors[2]
    triangle = joint_triangle(joint_triangle(None, vectors[:, :30]), vectors[:, 30:])
    expected = np.linalg.svd(vectors, compute_uv=False)
    np.testing.assert_allclose(np.linalg.svd(triangle, compute_uv=False), expected, atol=1e-14)


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("columns", [5, 20, 300], ids=["few", "some", "many"])
def test_principal_coordinates(columns: int, *, dependent: bool) -> None:
    vectors = matrix(10, columns)
    if dependent:
        vectors[7:] = vectors[:3] - vectors[3:6]
    found = principal_coordinates(vectors)
    np.testing.assert_allclose(found @ found.T, vectors @ vectors.T, atol=1e-11)
    values = np.linalg.svd(vectors, compute_uv=False)
    rank = min(columns, 7 if dependent else 10)
    assert found.shape == (10, rank)
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), values[:rank])
    products = found.T @ found
    np.testing.assert_allclose(products, np.diag(products.diagonal()), atol=1e-10)


def test_zeros_have_no_coordinates() -> None:
    assert principal_coordinates(np.zeros((4, 30))).shape == (4, 0)


def test_directions_that_hold_a_share() -> None:
    energies = np.array([60.0, 30, 5, 5])
    held = [directions_holding(share, energies) for share in (0.5, 0.6, 0.61, 0.9, 0.95, 0.951, 1)]
    assert held == [1, 1, 2, 2, 3, 4, 4]


@pytest.mark.parametrize("reliable", [1e-3, 1.0], ids=["Gram matrices", "decompositions"])
@pytest.mark.parametrize(("rows", "columns"), [(6, 40), (40, 6), (8, 8)])
def test_leading_directions(rows: int, columns: int, reliable: float) -> None:
    stack = matrix(2, 3, rows, columns)
    found = leading_directions(stack, 4, reliable=reliable)
    assert found.shape == (2, 3, columns, 4)
    for basis, each in zip(
        found.reshape(6, columns, 4), stack.reshape(6, rows, columns), strict=True
    ):
        _, _, right = np.linalg.svd(each)
        projection = right[:4].T @ right[:4]
        np.testing.assert_allclose(basis @ basis.T, projection, atol=1e-11)


@pytest.mark.parametrize("k", [3, 5])
def test_directions_that_are_lacking_are_zero(k: int) -> None:
    thin = matrix(7, 2, seed=1) @ matrix(2, 30, seed=2)
    found = leading_directions(np.stack([thin, matrix(7, 30), 0 * thin]), k)
    counts = (np.linalg.norm(found, axis=1) > 0.5).sum(axis=1)
    assert counts.tolist() == [2, k, 0]
    np.testing.assert_allclose(thin @ found[0] @ found[0].T, thin, atol=1e-12)


def test_more_directions_than_rows_are_lacking() -> None:
    found = leading_directions(matrix(2, 3, 9), 5)
    assert (np.linalg.norm(found, axis=1) > 0.5).sum(axis=1).tolist() == [3, 3]


def test_a_floor_under_singular_values() -> None:
    graded = np.diag([1.0, 1e-3, 1e-9])
    assert numerical_rank(graded) == 3
    assert numerical_rank(graded, floor=1e-8) == 2
    assert numerical_rank(np.zeros((3, 3))) == 0
    assert (np.linalg.norm(leading_directions(graded, 3, floor=1e-8), axis=0) > 0).sum() == 2
