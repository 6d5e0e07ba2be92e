"""The laws behind the certificate, against simulated residuals of a known nullity."""

import math

import pytest
import torch
from scipy.stats import chi2

from gradaudit.ranks.matrix_free import largest_nullity, least_norm

ALPHA = 0.05
TRIALS = 2000


def residuals(nullity: int, probes: int, generator: torch.Generator) -> list[float]:
    """Singular values of the part of Gaussian probes in a space of dimension ``nullity``."""
    values = torch.linalg.svdvals(
        torch.randn(nullity, probes, generator=generator, dtype=torch.float64)
    )
    return [*values.tolist(), *[0.0] * (probes - len(values))][:probes]


@pytest.mark.parametrize(("nullity", "probes"), [(1, 2), (1, 9), (3, 2), (3, 12), (40, 2), (40, 9)])
def test_the_true_nullity_is_excluded_as_rarely_as_promised(nullity: int, probes: int) -> None:
    generator = torch.Generator().manual_seed(1)
    excluded = sum(
        largest_nullity(residuals(nullity, probes, generator), ALPHA, 1000) < nullity
        for _ in range(TRIALS)
    )
    slack = 4 * math.sqrt(TRIALS * ALPHA * (1 - ALPHA))
    assert excluded <= TRIALS * ALPHA + slack


@pytest.mark.parametrize(("nullity", "probes"), [(1, 9), (3, 12), (20, 28)])
def test_probes_to_spare_pin_the_nullity_down(nullity: int, probes: int) -> None:
    generator = torch.Generator().manual_seed(2)
    for _ in range(50):
        assert largest_nullity(residuals(nullity, probes, generator), 1e-9, 1000) == nullity


def test_too_few_probes_leave_a_bracket_around_the_nullity() -> None:
    generator = torch.Generator().manual_seed(3)
    high = [largest_nullity(residuals(100, 4, generator), 1e-3, 1000) for _ in range(100)]
    assert min(high) >= 100
    assert sum(high) / len(high) < 200


def test_no_residuals_leave_no_nullity_and_large_ones_leave_all() -> None:
    assert largest_nullity([0.0, 0.0], 1e-9, 50) == 0
    assert largest_nullity([1e6, 1e6], 1e-9, 50) == 50


@pytest.mark.parametrize("probes", [2, 3, 8])
@pytest.mark.parametrize("alpha", [1e-9, 1e-3])
def test_least_norm_is_where_a_nullity_of_one_is_just_excluded(probes: int, alpha: float) -> None:
    norm = least_norm(probes, alpha)
    assert chi2.cdf(norm**2, probes) == pytest.approx(alpha / 2, rel=1e-6)
    inside, outside = 0.999 * norm, 3 * norm
    assert largest_nullity([inside, *[0.0] * (probes - 1)], alpha, 9) == 0
    assert largest_nullity([outside] * probes, alpha, 9) >= 1
