"""Principal angles and distances: constructed subspaces, SciPy's algorithm, tiny angles."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from gradaudit.audits.subspace.comparing import (
    DISTANCES,
    principal_angles,
    quick_angles,
    subspace_distances,
)

Array = NDArray[np.float64]

TINY = [1e-3, 1e-5, 1e-7, 1e-8, 1e-9, 1e-10]


def at_angles(angles: Array, dimensions: int, seed: int = 0) -> tuple[Array, Array]:
    """Orthonormal bases (dimensions, k) of two subspaces with these principal angles."""
    generator = np.random.default_rng(seed)
    k = len(angles)
    frame, _ = np.linalg.qr(generator.normal(size=(dimensions, 2 * k)))
    turns = [np.linalg.qr(generator.normal(size=(k, k)))[0] for _ in range(2)]
    first = frame[:, :k]
    second = first * np.cos(angles) + frame[:, k:] * np.sin(angles)
    return first @ turns[0], second @ turns[1]


@pytest.mark.parametrize("tiny", TINY)
def test_constructed_angles(tiny: float) -> None:
    angles = np.array([0, tiny, 2 * tiny, 0.3, 0.7, math.pi / 4, 1.2, math.pi / 2])
    found = principal_angles(*at_angles(angles, 40))
    np.testing.assert_allclose(found, angles, rtol=1e-6, atol=2e-14)


def test_angles_as_scipy_has_them() -> None:
    generator = np.random.default_rng(1)
    first, second = (np.linalg.qr(generator.normal(size=(30, 6)))[0] for _ in range(2))
    expected = subspace_angles(first, second)[::-1]
    np.testing.assert_allclose(principal_angles(first, second), expected, atol=1e-14)


def test_many_pairs_at_once() -> None:
    pairs = [at_angles(np.array([0.0, 0.2, 1.0]), 9, seed) for seed in range(4)]
    first, second = (np.stack(side) for side in zip(*pairs, strict=True))
    found = quick_angles(first, second)
    np.testing.assert_allclose(found, np.tile([0.0, 0.2, 1.0], (4, 1)), atol=1e-7)


def test_a_direction_that_is_lacking_makes_a_right_angle() -> None:
    first, second = at_angles(np.array([1e-9, 0.5, 1.0]), 12)
    second[:, 1] = 0
    left, _ = np.linalg.qr(second[:, [0, 2]])
    expected = [*subspace_angles(first, left)[::-1], math.pi / 2]
    np.testing.assert_allclose(principal_angles(first, second), expected, atol=1e-14)
    np.testing.assert_allclose(principal_angles(second, first), expected, atol=1e-14)
    nothing = np.zeros_like(first)
    np.testing.assert_allclose(principal_angles(nothing, nothing), np.full(3, math.pi / 2))


def test_distances_are_those_of_ye_and_lim() -> None:
    """Each by a second definition, through projections and bases (table 2, and page 1193)."""
    first, second = at_angles(np.array([0.1, 0.6, 1.4]), 10)
    found = subspace_distances(first, second)._asdict()
    np.testing.assert_allclose(found.pop("angles"), [0.1, 0.6, 1.4])
    projections = first @ first.T - second @ second.T
    left, _, right = np.linalg.svd(first.T @ second)
    assert found == pytest.approx(
        {
            "grassmann": math.sqrt(0.1**2 + 0.6**2 + 1.4**2),
            "asimov": math.asin(np.linalg.norm(projections, 2)),
            "chordal": np.linalg.norm(projections) / math.sqrt(2),
            "procrustes": np.linalg.norm(first @ left - second @ right.T),
        }
    )


def test_distances_of_many_angles() -> None:
    angles = np.random.default_rng(2).uniform(0, 1.5, size=(5, 4))
    for of in DISTANCES.values():
        np.testing.assert_allclose(of(angles), [float(of(row)) for row in angles])
