"""The laws behind the certificate, against simulated residuals of a known nullity."""

import math
from collections.abc import Sequence
from typing import cast

import pytest
import torch
from scipy.stats import chi2

from gradaudit.ranks.matrix_free import largest_nullity, least_norm, leave_residuals
from gradaudit.ranks.operator import ReducedU
from gradaudit.ranks.sides import Side

ALPHA = 0.05
TRIALS = 2000
NULL = 1e-8


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
    inside, outside = 0.999 * norm, 1.001 * norm
    assert largest_nullity([inside, *[0.0] * (probes - 1)], alpha, 9) == 0
    assert largest_nullity([outside, *[0.0] * (probes - 1)], alpha, 9) == 1


@pytest.mark.parametrize("nullity", [2, 5])
@pytest.mark.parametrize("alpha", [1e-9, 1e-3])
def test_the_least_singular_value_excludes_where_its_law_says(nullity: int, alpha: float) -> None:
    """Half of α for each law: (s e √p / (p−ν+1))^(p−ν+1) = α/2, with p of 12 probes."""
    spare = 12 - nullity + 1
    edge = math.exp(math.log(alpha / 2) / spare - 1) * spare / math.sqrt(12)
    for value, largest in [(0.999 * edge, nullity - 1), (1.001 * edge, nullity)]:
        values = [*[50.0] * (nullity - 1), value, *[0.0] * spare][:12]
        assert largest_nullity(values, alpha, 99) == largest


def diagonal(values: Sequence[float]) -> Side:
    """A side whose B is a diagonal matrix; nothing but its maps is looked at."""
    entries = torch.tensor([*values], dtype=torch.float64)

    def scale(vectors: torch.Tensor) -> torch.Tensor:
        return vectors * entries

    def keep(vectors: torch.Tensor) -> torch.Tensor:
        return vectors

    size = len(entries)
    return Side("inputs", cast("ReducedU", None), size, size, scale, scale, keep, keep)


@pytest.mark.parametrize(("image", "left_over"), [(0.9, 1), (1.1, 0)])
def test_a_direction_is_left_over_where_its_image_is_null(image: float, left_over: int) -> None:
    probe = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    side = diagonal([1.0, image * NULL])
    left = leave_residuals(side, probe, enough=1e-9, null=NULL, iterations=0)
    assert len(left.null) == left_over
    assert left.others == pytest.approx(1 - left_over)
    assert left.iterations == 0


def test_what_one_run_leaves_of_spanned_directions_the_next_ones_take() -> None:
    """Beside a direction that is left over, a run ends when its own share of the gradient is."""
    side = diagonal([10 ** (-4 * place / 29) for place in range(30)] + [0.0])
    probes = torch.randn(3, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left = leave_residuals(side, probes, enough=1e-9, null=NULL, iterations=1000)
    assert left.others <= 1e-9
    assert left.null.abs().tolist() == [pytest.approx([0.0] * 30 + [1.0], abs=1e-6)]
    truth = probes * torch.tensor([0.0] * 30 + [1.0])
    torch.testing.assert_close(left.vectors, truth, rtol=0, atol=1e-8)


def test_a_probe_with_nothing_left_stays_beside_others() -> None:
    side = diagonal([1.0, 0.5, 0.1])
    probes = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    left = leave_residuals(side, probes, enough=1e-9, null=NULL, iterations=30)
    torch.testing.assert_close(left.coefficients[1], torch.tensor([1.0, 2.0, 10.0]).double())
    assert left.coefficients[0].tolist() == [0.0, 0.0, 0.0]
