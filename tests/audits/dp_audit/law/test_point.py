import math

import numpy as np
import pytest

from gradaudit.audits.dp_audit.law.estimates import epsilon_point
from gradaudit.statistics.intervals import clopper_pearson_lower, clopper_pearson_upper

DELTA = 1e-3


def _by_hand(null, alternative, delta):
    """Every threshold, both formulas, one by one."""
    trials, best = len(null), (0.0, None)
    for tau in sorted({*null, *alternative}):
        positive = sum(value >= tau for value in null) / trials
        negative = sum(value < tau for value in alternative) / trials
        for denominator, other in ((positive, negative), (negative, positive)):
            if denominator and 1 - delta - other > 0:
                best = max(best, (math.log((1 - delta - other) / denominator), tau))
    return best


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("decimals", [1, 12])
def test_estimate_is_the_largest_over_all_thresholds(seed, decimals):
    null, alternative = np.random.default_rng(seed).normal(size=(2, 80)).round(decimals)
    estimate = epsilon_point(null, alternative + 1, delta=DELTA)
    value, threshold = _by_hand(list(null), list(alternative + 1), DELTA)
    assert (estimate.value, estimate.threshold) == (pytest.approx(value), threshold)


def test_interval_is_the_formula_at_the_ends_of_both_rates():
    null, alternative = np.repeat([0, 1], [90, 10]), np.repeat([0, 1], [40, 60])
    estimate = epsilon_point(null, alternative, delta=DELTA)
    assert (estimate.direction, estimate.threshold) == ("false positives", 1)
    assert (estimate.false_positives, estimate.false_negatives) == (10, 40)
    assert estimate.value == pytest.approx(math.log((1 - DELTA - 0.4) / 0.1))
    ends = [
        math.log((1 - DELTA - limit(40, 100, 0.025)) / limit(10, 100, 0.025))
        for limit in (clopper_pearson_upper, clopper_pearson_lower)
    ]
    assert estimate.interval == pytest.approx(ends, rel=1e-9)


def test_mirrored_direction():
    null, alternative = np.repeat([0, 1], [60, 40]), np.repeat([0, 1], [10, 90])
    estimate = epsilon_point(null, alternative, delta=DELTA)
    assert (estimate.direction, estimate.value) == (
        "false negatives",
        pytest.approx(math.log((1 - DELTA - 0.4) / 0.1)),
    )


def test_estimate_is_finite_where_the_formula_is_not():
    estimate = epsilon_point(np.arange(50), 100 + np.arange(50), delta=0)
    assert estimate.value == pytest.approx(math.log(50))
    assert estimate.interval[0] <= estimate.value <= estimate.interval[1] < math.inf


def test_groups_may_be_unequal():
    null, alternative = np.repeat([0, 1], [90, 10]), np.repeat([0, 1], [20, 30])
    estimate = epsilon_point(null, alternative, delta=DELTA)
    assert estimate.value == pytest.approx(math.log((1 - DELTA - 0.4) / 0.1))
    low = (1 - DELTA - clopper_pearson_upper(20, 50, 0.025)) / clopper_pearson_upper(10, 100, 0.025)
    assert estimate.interval[0] == pytest.approx(math.log(low))
    mirrored = epsilon_point(1 - alternative, 1 - null, delta=DELTA)
    assert (mirrored.value, mirrored.interval) == (estimate.value, estimate.interval)
    assert mirrored.direction == "false negatives"


def test_refuses_a_hypothesis_without_trials():
    with pytest.raises(ValueError, match="both hypotheses"):
        epsilon_point([1], [], delta=0)


def test_errors_are_told_as_they_are_in_either_direction():
    null, alternative = np.repeat([0, 1], [60, 40]), np.repeat([0, 1], [10, 190])
    estimate = epsilon_point(null, alternative, delta=0.1, confidence=0.9)
    assert (estimate.direction, estimate.threshold) == ("false negatives", 1)
    assert (estimate.false_positives, estimate.false_negatives) == (40, 10)
    assert estimate.value == pytest.approx(math.log((1 - 0.1 - 0.4) / 0.05))
    ends = [
        math.log((1 - 0.1 - limit(40, 100, 0.05)) / limit(10, 200, 0.05))
        for limit in (clopper_pearson_upper, clopper_pearson_lower)
    ]
    assert estimate.interval == pytest.approx(ends)
    assert estimate.confidence == 0.9
