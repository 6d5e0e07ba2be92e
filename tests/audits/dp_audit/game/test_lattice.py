import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from gradaudit.audits.dp_audit.game.missing_noise import lattice_statistic, lattice_steps

COUNT, ELEMENTS = 128, 6


def on_lattice(step: float, shift: float, seed: int, rounded: bool = False) -> torch.Tensor:
    """Normal noise in whole steps around a shift, (COUNT, ELEMENTS) float32."""
    noise = torch.randn(COUNT, ELEMENTS, generator=torch.Generator().manual_seed(seed)).double()
    shifts = shift * torch.arange(1, ELEMENTS + 1)
    if rounded:
        return (((noise + shifts) / step).round() * step).float()
    return ((noise / step).round() * step + shifts).float()


def rounding(values: np.ndarray) -> np.ndarray:
    return 16 * np.finfo(np.float32).eps * np.abs(values).max(axis=0)


@pytest.mark.parametrize("step", [0.5, 0.1, 0.01, 1e-3])
def test_the_step_of_a_lattice_is_found_to_rounding(step: float) -> None:
    values = on_lattice(step, 0.0123, 1).double().numpy()
    found = lattice_steps(values, rounding(values))
    np.testing.assert_allclose(found, step, rtol=1e-5)


def test_the_step_is_the_greatest_common_divisor_of_the_differences() -> None:
    """Against the divisor of whole numbers, where no two values are neighbours."""
    numbers = np.array([[0, 12, 42, 78], [0, 10, 35, 50]]).T
    expected = [math.gcd(*np.diff(column).tolist()) for column in numbers.T]
    found = lattice_steps(numbers * float(Fraction(1, 8)) + 0.3, np.full(2, 1e-9))
    np.testing.assert_allclose(found, np.array(expected) / 8)


@pytest.mark.parametrize("seed", range(20))
def test_continuous_noise_has_no_lattice(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    null, other = torch.randn(2, COUNT, ELEMENTS, generator=draw)
    assert lattice_statistic(null, other + 1, torch.ones(ELEMENTS)) is None


@pytest.mark.parametrize("step", [0.1, 1e-3])
def test_remainders_tell_the_hypotheses_of_fresh_releases_apart(step: float) -> None:
    """Σ 1 − cos(2π Δ_j/h) of the alternative, and less than nothing of the null hypothesis."""
    shift = 0.0133
    statistic = lattice_statistic(
        on_lattice(step, 0.0, 1), on_lattice(step, shift, 2), torch.ones(ELEMENTS)
    )
    assert statistic is not None
    turns = 2 * math.pi * shift * np.arange(1, ELEMENTS + 1) / step
    expected = (1 - np.cos(turns)).sum()
    null, other = (statistic(on_lattice(step, by, seed)) for by, seed in ((0.0, 3), (shift, 4)))
    np.testing.assert_allclose(null, -expected, rtol=0.05)
    np.testing.assert_allclose(other, expected, rtol=0.05)


def test_what_is_rounded_with_its_noise_leaves_no_remainder() -> None:
    looks = [on_lattice(0.1, by, seed, rounded=True) for by, seed in ((0.0, 1), (0.03, 2))]
    statistic = lattice_statistic(*looks, torch.ones(ELEMENTS))
    assert statistic is not None
    for by in (0.0, 0.03):
        released = statistic(on_lattice(0.1, by, 5, rounded=True))
        np.testing.assert_allclose(released, 0, atol=1e-3)


def test_still_elements_and_those_that_move_least_are_left_out() -> None:
    still = torch.ones(COUNT, 1)
    assert lattice_statistic(still, still + 1, torch.ones(1)) is None
