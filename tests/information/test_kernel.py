"""The bounds from pairwise distances: closed forms, a plain loop, and how well intervals cover."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from gradaudit.information.kernel import LOWER, UPPER, Bound, Pairs, information
from tests.coverage import assert_covers

Array = NDArray[np.float64]


def pairs(points: Array, *ends: int) -> Array:
    found = Pairs(len(points))
    for block in np.split(points, ends, axis=1):
        found.add(block)
    return found.squared_distances()


def looped(points: Array, sigma2: float, alpha: float) -> float:
    """The equation as it is printed, with its exponential."""
    total = 0.0
    for t in points:
        inner = sum(math.exp(-sum((t - u) ** 2) / (2 * alpha * sigma2)) for u in points)
        total -= math.log2(inner / len(points))
    return total / len(points)


@pytest.mark.parametrize("alpha", [UPPER, LOWER])
@pytest.mark.parametrize("sigma2", [0.01, 0.1, 3.0])
def test_the_equation_by_a_plain_loop(sigma2: float, alpha: float) -> None:
    points = np.random.default_rng(0).normal(size=(23, 5))
    found = information(pairs(points), sigma2, alpha)
    assert found.bits == pytest.approx(looped(points, sigma2, alpha), rel=1e-12)


@pytest.mark.parametrize("alpha", [UPPER, LOWER])
def test_without_a_record_it_is_the_equation_of_the_others(alpha: float) -> None:
    points = np.random.default_rng(1).normal(size=(9, 2)) / 3
    found = information(pairs(points), 0.1, alpha)
    expected = [looped(np.delete(points, i, axis=0), 0.1, alpha) for i in range(9)]
    np.testing.assert_allclose(found.without, expected, rtol=1e-12)


@pytest.mark.parametrize("alpha", [UPPER, LOWER])
@pytest.mark.parametrize(
    ("points", "bits"),
    [
        (np.full((8, 3), 1e6), 0.0),
        (1e4 * np.eye(16), 4.0),
        (np.repeat([[0.0], [500.0]], 10, axis=0), 1.0),
        (np.repeat([[0.0], [500.0], [1000.0], [-500.0]], [1, 1, 2, 4], axis=0), 1.75),
    ],
    ids=["one point", "far apart", "two clusters", "unequal clusters"],
)
def test_closed_forms(points: Array, bits: float, alpha: float) -> None:
    found = information(pairs(points), 0.1, alpha)
    assert found.bits == pytest.approx(bits, abs=1e-12)
    low, high = found.interval
    assert 0 <= low <= found.bits <= high <= math.log2(len(points))


def test_the_lower_bound_lies_below_the_upper_one() -> None:
    generator = np.random.default_rng(2)
    for spread in (0.01, 0.1, 1, 10):
        distances = pairs(spread * generator.normal(size=(40, 3)))
        upper, lower = (information(distances, 0.1, alpha).bits for alpha in (UPPER, LOWER))
        assert 0 < lower <= upper <= math.log2(40)
        assert lower < upper or spread == 10  # where all points lie far apart, both are log2 N


def test_the_truth_lies_between_the_bounds() -> None:
    """Information of a mixture of two Gaussians, by integration."""
    sigma2, gap = 0.1, 0.9
    points = np.array([[0.0], [gap]])
    x = np.linspace(-4, 5, 200_001)
    parts = np.exp(-((x - points) ** 2) / (2 * sigma2)) / math.sqrt(2 * math.pi * sigma2)
    mixture = parts.mean(axis=0)
    entropy = -np.trapezoid(mixture * np.log2(mixture), x)
    truth = entropy - 0.5 * math.log2(2 * math.pi * math.e * sigma2)
    upper, lower = (information(pairs(points), sigma2, alpha).bits for alpha in (UPPER, LOWER))
    assert lower < truth < upper


def test_more_noise_hides_more() -> None:
    distances = pairs(np.random.default_rng(3).normal(size=(30, 4)))
    found = [information(distances, sigma2, UPPER).bits for sigma2 in (0.01, 0.1, 1, 10, 100)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]


def test_blocks_of_rows_and_of_elements_change_nothing() -> None:
    points = np.random.default_rng(4).normal(size=(31, 7)) / 2
    whole = information(pairs(points), 0.1, UPPER)
    some = information(pairs(points, 1, 4, 6), 0.1, UPPER, memory=3 * 8 * 3 * 31)
    assert some.bits == pytest.approx(whole.bits, rel=1e-13)
    np.testing.assert_allclose(some.without, whole.without, rtol=1e-13)


def test_what_all_points_share_rounds_nothing_away() -> None:
    points = np.random.default_rng(5).normal(size=(20, 3)) / 3
    far = information(pairs(points + 1e7), 0.1, UPPER).bits
    assert far == pytest.approx(information(pairs(points), 0.1, UPPER).bits, rel=1e-6)


def gaussian_bits(dimensions: int, spread2: float, sigma2: float, alpha: float) -> float:
    """−E_t log2 E_u exp(−‖t − u‖²/(2w)) for t, u ~ N(0, s² I), w = ασ².

    The inner mean is (w/(w + s²))^(d/2) exp(−‖t‖²/(2(w + s²))), and E‖t‖² = d s².
    """
    width = alpha * sigma2
    total = width + spread2
    nats = dimensions / 2 * (math.log(total / width) + spread2 / total)
    return nats / math.log(2)


@pytest.mark.parametrize("alpha", [UPPER, LOWER])
def test_many_points_of_a_gaussian_give_its_integral(alpha: float) -> None:
    points = np.random.default_rng(6).normal(size=(3000, 2))
    found = information(pairs(points), 0.5, alpha)
    assert found.bits == pytest.approx(gaussian_bits(2, 1.0, 0.5, alpha), abs=0.05)


@pytest.mark.parametrize(("dimensions", "sigma2"), [(1, 0.1), (4, 0.3)], ids=["dense", "sparse"])
def test_intervals_cover_what_other_records_give_on_average(dimensions: int, sigma2: float) -> None:
    generator = np.random.default_rng(7)
    found = [
        information(pairs(generator.normal(size=(60, dimensions))), sigma2, UPPER)
        for _ in range(600)
    ]
    truth = float(np.mean([each.bits for each in found]))
    intervals = [each.interval for each in found[:300]]
    assert_covers(intervals, truth, 0.95)
    assert np.mean([high - low for low, high in intervals]) < 0.8


def test_intervals_cover_the_integral_where_records_are_many_enough() -> None:
    generator = np.random.default_rng(8)
    found = [information(pairs(generator.normal(size=(200, 1))), 0.5, UPPER) for _ in range(300)]
    assert_covers([each.interval for each in found], gaussian_bits(1, 1.0, 0.5, UPPER), 0.93)


def test_an_interval_holds_its_bound() -> None:
    assert Bound(2.0, np.full(4, math.log2(3))).interval == (2.0, 2.0)
