"""The laws behind the certificate, against simulated residuals of a known nullity."""

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from scipy.stats import chi2

from gradaudit.ranks.matrix_free import (
    ALPHA as CERTIFIED,
)
from gradaudit.ranks.matrix_free import (
    ALPHA_SMALLEST,
    Nullity,
    ResidualProgress,
    Residuals,
    _enough,
    _judge,
    _probes_for,
    largest_nullity,
    least_norm,
    leave_residuals,
    nullity,
)
from gradaudit.ranks.operator import Equations, ReducedU
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


WORK = 50
SCALE = 2.0


def diagonal(values: Sequence[float]) -> Side:
    """A side whose B is a diagonal matrix, at 50 operations an application."""
    entries = torch.tensor([*values], dtype=torch.float64)

    def scale(vectors: torch.Tensor) -> torch.Tensor:
        return vectors * entries

    def keep(vectors: torch.Tensor) -> torch.Tensor:
        return vectors

    size = len(entries)
    geometry = SimpleNamespace(scale=SCALE, sources=entries)
    operator = SimpleNamespace(flops=WORK, columns=size, height=size - 1, geometry=geometry)
    return Side("inputs", cast("ReducedU", operator), size, size, scale, scale, keep, keep)


@pytest.mark.parametrize(("image", "left_over"), [(0.9, 1), (1.1, 0)])
def test_a_direction_is_left_over_where_its_image_is_null(image: float, left_over: int) -> None:
    probe = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    side = diagonal([1.0, image * NULL])
    left = leave_residuals(side, probe, null=NULL, course=ResidualProgress(1e-9, 0))
    assert len(left.null) == left_over
    assert left.others == pytest.approx(1 - left_over)
    assert left.iterations == 0


def test_what_one_run_leaves_of_spanned_directions_the_next_ones_take() -> None:
    """Beside a direction that is left over, a run ends when its own share of the gradient is."""
    values = [10 ** (-4 * place / 29) for place in range(30)] + [0.0]
    side = diagonal(values)
    probes = torch.randn(3, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left = leave_residuals(side, probes, null=NULL, course=ResidualProgress(1e-9, 1000))
    assert left.others <= 1e-9
    assert left.null.abs().tolist() == [pytest.approx([0.0] * 30 + [1.0], abs=1e-6)]
    seen = (left.vectors * torch.tensor(values)).norm(dim=1) / probes.norm(dim=1)
    assert seen.max() <= 1e-9, "what the side sees of what is left is as little as was asked"
    torch.testing.assert_close(left.vectors[:, 30], probes[:, 30], rtol=0, atol=1e-8)
    most = left.iterations - 1
    short = leave_residuals(side, probes, null=NULL, course=ResidualProgress(1e-9, most))
    assert short.iterations == most, "runs share what they may take"


def test_a_probe_with_nothing_left_stays_beside_others() -> None:
    side = diagonal([1.0, 0.5, 0.1])
    probes = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    left = leave_residuals(side, probes, null=NULL, course=ResidualProgress(1e-9, 30))
    torch.testing.assert_close(left.coefficients[1], torch.tensor([1.0, 2.0, 10.0]).double())
    assert left.coefficients[0].tolist() == [0.0, 0.0, 0.0]


def searched(values: Sequence[float], *, least: int = 0, flops: float = 1e9) -> Nullity:
    generator = torch.Generator().manual_seed(5)
    return nullity(diagonal(values), least=least, flops=flops, generator=generator)


SPANNED = [0.2, 0.5, 1.0, 1.3, 2.0]


@pytest.mark.parametrize("zeros", [0, 1, 3, 12])
def test_a_nullity_is_found_by_probes_to_spare(zeros: int) -> None:
    """Two probes settle one dimension at most; what they suggest is enough for the next."""
    found = searched([*SPANNED, *[0.0] * zeros])
    assert (found.low, found.high) == (zeros, zeros)
    assert (found.looks, found.side) == (1 + (zeros > 1), "inputs")
    assert found.probes >= zeros + 8 if zeros > 1 else found.probes == 2
    assert found.residual <= 0.5 * least_norm(found.probes, CERTIFIED)
    assert 0 < found.iterations <= 10 * len(SPANNED)


def test_more_probes_see_all_that_a_few_suggest() -> None:
    """‖e‖² of 9 each: a χ² with 9 degrees of freedom is hardly ever beyond 9 + 4 · 3."""
    rows = 3 * torch.eye(5, dtype=torch.float64)[:2]
    left = Residuals(rows, rows, rows[:0], others=float(rows.norm()), iterations=0)
    assert _probes_for(left) == 21 + 8
    assert _probes_for(replace(left, vectors=rows / 2)) == math.ceil(2.25 + 4 * 1.5) + 8


def test_a_known_nullity_is_met_with_probes_to_spare_at_once() -> None:
    found = searched([*SPANNED, *[0.0] * 3], least=3)
    assert (found.low, found.high, found.looks, found.probes) == (3, 3, 1, 3 + 8)


def test_the_least_singular_value_is_bounded_over_im2col() -> None:
    """A probe e leaves vᵀX = vᵀE + σ vᵀY, so that σ is at least what is missing over ‖Y‖."""
    found = searched(SPANNED)
    assert found.smallest is not None
    assert 1e-3 < found.smallest <= 0.2 / SCALE
    assert searched([*SPANNED, 0.0]).smallest is None


@pytest.mark.parametrize("seed", range(3))
def test_the_least_singular_value_of_one_dimension(seed: int) -> None:
    """Two probes x of B = σ have ‖y‖ = ‖x‖/σ, and ‖x‖ is below its α quantile as often as α."""
    side, generator = diagonal([0.3]), torch.Generator()
    probes = side.probes(2, generator.manual_seed(seed))
    found = nullity(side, least=0, flops=1e9, generator=generator.manual_seed(seed))
    quantile = math.sqrt(-2 * math.log1p(-ALPHA_SMALLEST / 2))
    assert found.probes == 2
    assert found.smallest == pytest.approx(quantile * 0.3 / (SCALE * float(probes.norm())))


@pytest.mark.parametrize("applications", [0, 1, 3])
def test_work_is_spent_up_to_its_limit(applications: int) -> None:
    """Two probes cost 2 · 2 · 50 an iteration."""
    spread = [10.0**-place for place in range(8)]
    found = searched(spread, flops=200 * applications)
    assert found.iterations == applications
    assert (found.low, found.looks) == (0, 1)
    assert found.high == 8 if applications < 3 else found.high <= 8
    assert searched([*spread, 0.0], least=1, flops=200 * applications).probes == 2


def test_more_probes_are_followed_where_they_can_be_paid() -> None:
    """Nine with a nullity of 1 that is known: 2 · 9 · 50 an iteration."""
    assert searched([*SPANNED, 0.0], least=1, flops=900).probes == 9
    assert searched([*SPANNED, 0.0], least=1, flops=899).probes == 2


def test_more_probes_are_followed_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of six float64 each, the longer of both lengths."""
    monkeypatch.setattr("gradaudit.ranks.matrix_free._MOST_PROBE_BYTES", 8 * 9 * 6)
    assert searched([*SPANNED, 0.0], least=1).probes == 9
    monkeypatch.setattr("gradaudit.ranks.matrix_free._MOST_PROBE_BYTES", 8 * 9 * 6 - 1)
    assert searched([*SPANNED, 0.0], least=1).probes == 2


@pytest.mark.parametrize("size", [4, 9])
def test_conjugate_gradients_end_with_their_degrees_of_freedom(size: int) -> None:
    """As many iterations as there are different singular values, and the exact solution."""
    values = [1.0 + place for place in range(size)]
    side = diagonal(values)
    probe = torch.ones(1, size, dtype=torch.float64)
    left = leave_residuals(side, probe, null=NULL, course=ResidualProgress(1e-10, 100))
    assert left.iterations == size
    torch.testing.assert_close(left.coefficients, 1 / torch.tensor([values]).double())
    torch.testing.assert_close(left.vectors, 0 * probe, rtol=0, atol=1e-10)
    assert left.null.shape == (0, size)
    halfway = leave_residuals(side, probe, null=NULL, course=ResidualProgress(1e-10, size // 2))
    assert halfway.iterations == size // 2
    assert halfway.others == pytest.approx(float(halfway.vectors.norm()))
    assert 1e-10 < halfway.others < float(probe.norm())


def test_directions_are_left_over_all_together() -> None:
    """Three images of .6 of the line each: two of them are below it together, three are not."""
    side = diagonal([*[0.6 * NULL] * 3, 1.0])
    probes = torch.eye(4, dtype=torch.float64) * torch.tensor([3.0, 2.0, 1.0, 0.0])
    left = leave_residuals(side, probes[:3], null=NULL, course=ResidualProgress(1e-9, 0))
    torch.testing.assert_close(left.null.abs(), torch.eye(4, dtype=torch.float64)[:2])
    assert left.others == pytest.approx(1.0)


@pytest.mark.parametrize("probes", [1, 2, 9, 40])
def test_half_of_what_excludes_a_nullity_is_short_enough(probes: int) -> None:
    assert _enough(probes) == pytest.approx(math.sqrt(chi2.ppf(CERTIFIED / 2, probes)) / 2)


@pytest.mark.parametrize(("share", "high"), [(0.99, 0), (1.01, 1)])
def test_what_rounding_may_hide_counts_as_left(share: float, high: int) -> None:
    """Two probes exclude a nullity of 1 below a norm of √α, here of 8 roundings of ‖Y‖ ‖B‖."""
    rounding = share * math.sqrt(-math.log1p(-CERTIFIED / 2)) / (8 * 2.0**-52)
    coefficients = torch.diag(torch.tensor([rounding / SCALE, 1.0], dtype=torch.float64))
    none = torch.zeros(2, 2, dtype=torch.float64)
    judged = _judge(diagonal([1.0, 1.0]), Residuals(none, coefficients, none[:0], 0.0, 3))
    assert (judged.low, judged.high, judged.probes, judged.iterations) == (0, high, 2, 3)
    assert (judged.smallest is None) is bool(high)


@pytest.mark.parametrize(("share", "high"), [(0.99, 0), (1.01, 1)])
def test_rounding_of_equations_hides_what_long_combinations_pass(share: float, high: int) -> None:
    """Of Wᵀy, as long as ‖Y‖ ‖B‖, a basis that is off by 1e-10 passes that share."""
    side = replace(
        diagonal([1.0, 1.0]),
        equations=cast("Equations", SimpleNamespace(rounding=1e-10, of_whole=float)),
    )
    length = 2 * math.sqrt(2) + 6.5
    least = math.sqrt(-math.log1p(-CERTIFIED / 2))
    gain = share * least / (1e-10 + 8 * 2.0**-52) - length
    coefficients = torch.diag(torch.tensor([gain / SCALE, 1.0], dtype=torch.float64))
    none = torch.zeros(2, 2, dtype=torch.float64)
    judged = _judge(side, Residuals(none, coefficients, none[:0], 0.0, 3))
    assert judged.high == high


@pytest.mark.parametrize(("dispensable", "given_up"), [(True, True), (False, False)])
@pytest.mark.parametrize(("pace", "late"), [(0.9, True), (0.3, False)])
def test_a_search_that_is_not_on_course_is_given_up_where_it_may_be(
    dispensable: bool, given_up: bool, pace: float, late: bool
) -> None:
    """From 1 to 1e-6 it takes 131 steps of 0.9 and 12 of 0.3; twice 40 are allowed for."""
    course = ResidualProgress(1e-6, 40, lambda: dispensable)
    followed = [course.follow(pace**step) for step in range(1, 9)]
    assert not any(followed)
    assert course.given_up == course.over == (given_up and late)
    assert course.taken == 8


def test_a_search_that_is_given_up_says_what_it_saw() -> None:
    values = [10 ** (-3 * place / 199) for place in range(200)]
    generator = torch.Generator().manual_seed(5)
    found = nullity(
        diagonal(values),
        least=0,
        flops=2.0 * WORK * 2 * 40,
        generator=generator,
        dispensable=lambda: True,
    )
    assert (found.iterations, found.low, found.looks) == (8, 0, 1)
    assert 0 < found.high <= 200
