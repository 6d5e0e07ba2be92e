"""Intervals for new records, against closed forms."""

import numpy as np
import pytest
from scipy import integrate, stats

from gradaudit.audits.vinfo.spread import (
    RecordUse,
    auroc_interval,
    information_interval,
    ranked_alone,
    ranked_share,
)
from gradaudit.audits.vinfo.v_information import UsableInformation

SAMPLED = RecordUse(300, 700, 62.5)


def usable(information: float, auroc: float) -> UsableInformation:
    return UsableInformation(information, float(np.log(2)), auroc, "logistic", "logistic")


def margin(values: np.ndarray, sampled: RecordUse) -> float:
    """Nadeau and Bengio's."""
    factor = 1 / len(values) + sampled.scored / sampled.fitted
    return float(stats.t.ppf(0.975, len(values) - 1) * np.sqrt(values.var(ddof=1) * factor))


def rate(mean: float, trials: float, disjoint: float) -> tuple[float, float]:
    """Wilson's interval with Student's quantile for so many disjoint batches of either value."""
    q = stats.t.ppf(0.975, 2 * disjoint - 2)
    centre = (mean + q**2 / 2 / trials) / (1 + q**2 / trials)
    reach = q * np.sqrt(mean * (1 - mean) / trials + q**2 / 4 / trials**2) / (1 + q**2 / trials)
    return centre - reach, centre + reach


def worth(sampled: RecordUse, repetitions: int) -> float:
    """Variance of a mean over R splits: 1/(s D), and s of it in common between two splits."""
    share = sampled.scored / (sampled.scored + sampled.fitted)
    one = 1 / (share * sampled.disjoint)
    return float(1 / (one / repetitions + share * one * (1 - 1 / repetitions)))


def test_trials_grow_with_repetitions_to_all_disjoint_batches() -> None:
    assert SAMPLED.trials(1) == pytest.approx(0.3 * 62.5)
    assert SAMPLED.trials(8) == pytest.approx(worth(SAMPLED, 8))
    assert SAMPLED.trials(10**6) == pytest.approx(62.5, rel=1e-4)


@pytest.mark.parametrize("disjoint", [6.25, 62.5, 6250.0])
@pytest.mark.parametrize(
    "values", [[0.0, 0.14, 0.1, 0.22, -0.1], [0.4, 0.42, 0.45, 0.41, 0.44], [-0.1, 0.0, 0.01]]
)
def test_informations_interval_spans_nadeau_and_bengios_and_a_rates(
    values: list[float], disjoint: float
) -> None:
    array, sampled = np.array(values), RecordUse(300, 700, disjoint)
    mean, reach, entropy = array.mean(), margin(array, sampled), np.log(2)
    low, high = rate(max(mean, 0) / entropy, worth(sampled, len(array)), disjoint)
    found = information_interval([usable(each, 0.7) for each in array], sampled)
    expected = min(mean - reach, entropy * low), max(mean + reach, entropy * high)
    assert found == pytest.approx(np.minimum(expected, entropy))


@pytest.mark.parametrize(
    ("values", "units"),
    [([0.5] * 4, 1.25), ([0.8] * 4, 1.25 / 0.8), ([0.99] * 4, 1.9), ([1.0] * 4, 1.9)],
)
def test_an_aurocs_interval_is_a_rates(values: list[float], units: float) -> None:
    sampled = RecordUse(60, 140, 12.5)
    found = auroc_interval([usable(0.1, each) for each in values], sampled)
    assert found == pytest.approx(rate(values[0], units * worth(sampled, 4), 12.5))


def test_repetitions_that_differ_widen_an_aurocs_interval() -> None:
    sampled, array = RecordUse(60, 140, 12.5), np.array([0.3, 0.9, 0.5, 0.7])
    trials = 0.6 * 0.4 / (array.var(ddof=1) * (1 / 4 + 60 / 140))
    assert trials < worth(sampled, 4)
    found = auroc_interval([usable(0.1, each) for each in array], sampled)
    assert found == pytest.approx(rate(0.6, trials, 12.5))


def test_an_auroc_near_one_exceeds_three_quarters_with_a_few_hundred_records() -> None:
    """320 records in batches of 16 make ten disjoint ones of either value."""
    low, _ = auroc_interval([usable(0.6, 0.999)] * 8, RecordUse(96, 224, 10.0))
    assert low > 0.75
    low, _ = auroc_interval([usable(0.6, 0.999)] * 8, RecordUse(30, 70, 100 / 32))
    assert low < 0.6, "three disjoint batches of either value prove little"


def test_the_prior_in_every_repetition_leaves_what_the_ranking_allows() -> None:
    found = [usable(0.0, auroc) for auroc in (0.8, 0.85, 0.9, 0.87, 0.93)]
    low, high = information_interval(found, SAMPLED)
    assert low == 0
    assert 0.25 < high < np.log(2)
    assert "ranking beats chance" in ranked_alone(found, SAMPLED)
    nothing = [usable(0.0, auroc) for auroc in (0.48, 0.5, 0.53, 0.49, 0.51)]
    low, high = information_interval(nothing, SAMPLED)
    assert 0 == low < high < 0.03
    assert not ranked_alone(nothing, SAMPLED)
    assert not ranked_alone([usable(0.0, 0.5)] * 5, SAMPLED), "of the prior as the only family"
    upside_down = [usable(0.0, 0.2)] * 5
    assert information_interval(upside_down, SAMPLED) == pytest.approx(
        (0, np.log(2) * ranked_share(1 - auroc_interval(upside_down, SAMPLED)[0]))
    )


def test_an_auroc_and_its_interval_are_shares() -> None:
    low, high = auroc_interval([usable(0.1, each) for each in (0.0, 1.0, 0.1)], SAMPLED)
    assert 0 <= low < 0.2 < 0.8 < high <= 1


@pytest.mark.parametrize("auroc", [0.5, 0.6, 0.75, 0.9, 0.99])
def test_what_a_ranking_tells_is_that_of_two_normal_laws(auroc: float) -> None:
    apart = np.sqrt(2) * stats.norm.ppf(auroc)

    def density(x: float) -> float:
        first, second = stats.norm.pdf(x), stats.norm.pdf(x - apart)
        mean = (first + second) / 2
        terms = [p * np.log2(p / mean) / 2 for p in (first, second) if p > 1e-300]
        return float(sum(terms))

    expected = integrate.quad(density, -12, 12 + apart, limit=200)[0]
    assert ranked_share(auroc) == pytest.approx(expected, abs=1e-5)
    assert ranked_share(1 - auroc) == pytest.approx(0, abs=1e-12)
    assert ranked_share(1.0) == pytest.approx(1, abs=1e-5)
