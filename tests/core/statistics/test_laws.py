"""Tails, quantiles and ranks, against ``scipy.stats``."""

import numpy as np
import pytest
from scipy import stats

from gradaudit.core.statistics.correlation import rank
from gradaudit.core.statistics.laws import (
    binomial_at_least,
    binomial_quantile,
    student_p,
    student_quantile,
)


@pytest.mark.parametrize("freedom", [1, 2.5, 30, 1e6])
def test_students_law_is_scipys(freedom: float) -> None:
    law = stats.t(freedom)
    assert student_quantile(freedom) == pytest.approx(law.ppf(0.975), rel=1e-12)
    assert student_p(-1.7, freedom) == student_p(1.7, freedom)
    assert student_p(1.7, freedom) == pytest.approx(2 * law.sf(1.7), rel=1e-10)


@pytest.mark.parametrize("trials", [1, 7, 1000, 2_000_000])
@pytest.mark.parametrize("share", [1e-6, 0.01, 0.4])
def test_the_binomial_law_is_scipys(trials: int, share: float) -> None:
    law = stats.binom(trials, share)
    for count in {0, 1, int(trials * share), trials}:
        assert binomial_at_least(count, trials, share) == pytest.approx(law.sf(count - 1))
    for probability in (1e-9, 0.1, 0.5, 0.9):
        assert binomial_quantile(probability, trials, share) == law.ppf(probability)


def test_ties_share_their_ranks() -> None:
    values = np.random.default_rng(0).integers(5, size=40).astype(float)
    np.testing.assert_array_equal(rank(values), stats.rankdata(values))
