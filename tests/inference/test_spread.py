"""Intervals for new records, and what a learning curve says, against closed forms."""

import numpy as np
import pytest
from scipy import integrate, stats

from gradaudit.inference.spread import (
    Sampled,
    auroc_interval,
    by_a_line,
    imprecise,
    information_interval,
    limit_of_ranking,
    mean_curve,
    ranked_share,
)
from gradaudit.inference.usable import Learned, Usable

SAMPLED = Sampled(300, 700, 62.5)


def usable(information: float, auroc: float, curve: tuple[Learned, ...] = ()) -> Usable:
    return Usable(information, float(np.log(2)), auroc, "logistic", "logistic", curve)


def test_the_interval_is_nadeau_and_bengios() -> None:
    values = np.array([0.1, 0.14, 0.2, 0.22, 0.3])
    low, high = information_interval([usable(each, 0.7) for each in values], SAMPLED)
    margin = stats.t.ppf(0.975, 4) * np.sqrt(values.var(ddof=1) * (1 / 5 + 3 / 7))
    assert (low, high) == pytest.approx((values.mean() - margin, values.mean() + margin))


def test_repetitions_that_agree_are_no_certainty() -> None:
    """At the edge: as if one disjoint batch of 62.5 told nothing."""
    found = [usable(float(np.log(2)), 1.0)] * 5
    quantile = stats.t.ppf(0.975, 4)
    assert auroc_interval(found, SAMPLED) == pytest.approx((1 - quantile * 0.5 / 62.5, 1))
    low, high = information_interval(found, SAMPLED)
    assert low == pytest.approx(np.log(2) * (1 - quantile / 62.5))
    assert high > np.log(2)
    assert not imprecise(found, SAMPLED)


def test_the_prior_in_every_repetition_leaves_what_the_ranking_allows() -> None:
    found = [usable(0.0, auroc) for auroc in (0.8, 0.85, 0.9, 0.87, 0.93)]
    low, high = information_interval(found, SAMPLED)
    assert low == 0
    assert 0.25 < high < np.log(2)
    assert "ranking beats chance" in imprecise(found, SAMPLED)
    nothing = [usable(0.0, auroc) for auroc in (0.48, 0.5, 0.53, 0.49, 0.51)]
    low, high = information_interval(nothing, SAMPLED)
    assert 0 == low < high < 0.01
    assert not imprecise(nothing, SAMPLED)
    assert not imprecise([usable(0.0, 0.5)] * 5, SAMPLED), "of the prior as the only family"
    upside_down = [usable(0.0, 0.2)] * 5
    assert information_interval(upside_down, SAMPLED) == pytest.approx(
        (0, np.log(2) * ranked_share(1 - auroc_interval(upside_down, SAMPLED)[0]))
    )


def test_an_auroc_and_its_interval_are_shares() -> None:
    assert auroc_interval([usable(0.1, each) for each in (0.0, 1.0, 0.1)], SAMPLED) == (0, 1)


def test_too_few_disjoint_batches_are_told_with_the_number_needed() -> None:
    why = imprecise([usable(0.3, 0.9)] * 5, Sampled(60, 140, 6.25))
    assert "only 6.25 batches" in why
    assert "20 are needed, about 640 records" in why


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


def test_the_limit_of_a_linear_discriminants_curve_is_found() -> None:
    """1/δ² = 1/Δ² + c/share exactly, so AUROC = Φ(Δ/√2) is the limit."""
    shares = (1 / 3, 2 / 3, 1.0)
    apart = [(1 / 1.5**2 + 0.4 / share) ** -0.5 for share in shares]
    aurocs = [float(stats.norm.cdf(each / np.sqrt(2))) for each in apart]
    curve = [Learned(s, 0.1, a) for s, a in zip(shares, aurocs, strict=True)]
    assert limit_of_ranking(curve) == pytest.approx(stats.norm.cdf(1.5 / np.sqrt(2)))
    doubling = [Learned(s, 0.1, float(stats.norm.cdf(0.5 * np.sqrt(s / 2)))) for s in shares]
    assert limit_of_ranking(doubling) is None or limit_of_ranking(doubling) > 0.999
    assert limit_of_ranking([Learned(s, 0.0, 0.49) for s in shares]) is None


def test_points_of_a_curve_weigh_as_the_sixth_power_of_their_distance() -> None:
    """Least squares by its normal equations, of points on no line; one at chance has no say."""
    shares, aurocs = np.array([0.1, 0.25, 0.5, 1.0]), [0.5004, 0.6, 0.7, 0.72]
    curve = [Learned(s, 0.1, a) for s, a in zip(shares, aurocs, strict=True)]
    apart = np.sqrt(2) * stats.norm.ppf(aurocs[1:])
    lines = np.stack([np.ones(3), 1 / shares[1:]], axis=1)
    weighted = lines.T * apart**6
    level, slope = np.linalg.solve(weighted @ lines, weighted @ apart**-2)
    assert slope > 0
    assert limit_of_ranking(curve) == pytest.approx(stats.norm.cdf(level**-0.5 / np.sqrt(2)))
    assert limit_of_ranking(curve[:2]) is None
    assert limit_of_ranking([*curve[:3], Learned(1.0, 0.1, 0.5)]) is None
    falling = [Learned(s, 0.1, a) for s, a in zip(shares, (0.9, 0.88, 0.87, 0.86), strict=True)]
    assert limit_of_ranking(falling) == pytest.approx(0.86)


def test_a_line_adds_what_it_shows() -> None:
    shares = [1 / 3, 2 / 3, 1.0]
    assert by_a_line(shares, [0.2 - 0.05 / share for share in shares]) == pytest.approx(0.05)
    assert by_a_line(shares, [0.1, 0.1, 0.1]) == pytest.approx(0, abs=1e-12)


def test_curves_are_averaged_point_by_point() -> None:
    first = usable(0.3, 0.9, (Learned(0.5, 0.1, 0.7), Learned(1, 0.3, 0.9)))
    second = usable(0.1, 0.7, (Learned(0.5, 0.3, 0.5), Learned(1, 0.1, 0.7)))
    assert [tuple(each) for each in mean_curve([first, second])] == [
        pytest.approx((0.5, 0.2, 0.6)),
        pytest.approx((1, 0.2, 0.8)),
    ]
    assert mean_curve([first, usable(0.1, 0.7)]) == []
