"""Intervals of quantiles: ranks by exact fractions, coverage of awkward laws, few values."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from gradaudit.core.text import UNBOUNDED
from gradaudit.statistics.intervals import fewest_values, order_statistics, quantile_interval
from tests.coverage import assert_covers

TAIL = 0.025


def at_most(k: int, count: int, share: Fraction) -> Fraction:
    """P(B ≤ k) of a binomial number."""
    terms = (comb(count, i) * share**i * (1 - share) ** (count - i) for i in range(k + 1))
    return sum(terms, Fraction(0))


@pytest.mark.parametrize("count", [1, 2, 5, 6, 12, 35, 36, 40, 200])
@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(9, 10)])
def test_ranks_by_exact_fractions(count: int, share: Fraction) -> None:
    below, above = order_statistics(count, float(share), TAIL)
    assert below == 0 or at_most(below - 1, count, share) <= TAIL
    assert at_most(below, count, share) > TAIL
    assert 1 - at_most(above - 1, count, share) <= TAIL
    assert 1 - at_most(above - 2, count, share) > TAIL or above == 1


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_an_upper_end_takes_so_many_values(share: float) -> None:
    needed = fewest_values(share, TAIL)
    assert order_statistics(needed, share, TAIL)[1] == needed
    assert order_statistics(needed - 1, share, TAIL)[1] == needed


@pytest.mark.parametrize("count", [3, 10, 40])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_quantiles_of_heavy_tails_and_of_ties_are_covered(count: int, share: float) -> None:
    generator = np.random.default_rng(0)
    heavy = generator.pareto(0.3, (1000, count))
    found = [quantile_interval(values, values, share, TAIL) for values in heavy]
    assert_covers(found, (1 - share) ** (-1 / 0.3) - 1, 0.95)
    tied = generator.integers(0, 4, (1000, count)).astype(float)
    found = [quantile_interval(values, values, share, TAIL) for values in tied]
    assert_covers(found, {0.5: 1.0, 0.9: 3.0}[share], 0.95)


def test_ends_come_from_the_ends_of_the_values() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1.0, 13))
    assert quantile_interval(values / 2, values * 2, 0.5, TAIL) == (1.5, 20)
    assert quantile_interval(values / 2, values * 2, 0.9, TAIL) == (4, UNBOUNDED)
    assert quantile_interval(values[:3], values[:3], 0.5, TAIL) == (0, UNBOUNDED)
