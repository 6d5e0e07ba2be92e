"""The variance of scores on overlapping batches, against all pairs and against simulation."""

from itertools import combinations

import numpy as np
import pytest

from gradaudit.core.statistics.u_statistic import Draws, ProjectedScores, disjoint, pooled, project
from gradaudit.games.splits import draw_any


def drawn(records: int, size: int, trials: int, seed: int) -> np.ndarray:
    return draw_any(np.arange(records), size, trials, np.random.default_rng(seed))


def one_stratum(members: np.ndarray, clusters: np.ndarray | None = None) -> Draws:
    whose = members if clusters is None else clusters[members]
    return Draws.of(members, np.zeros(len(members), dtype=np.int64), whose)


def mean_of(values: np.ndarray, draws: Draws) -> ProjectedScores:
    errors = (values - values.mean()) / len(values)
    return project(np.array([values.mean()]), errors[:, None], draws)


def test_the_shared_variance_is_that_of_all_pairs_of_trials() -> None:
    """Σ_{t≠t'} u_t u_t' Σ_c (a_ct − ā_c)(a_ct' − ā_c), with dense arrays and a loop over pairs."""
    members, rng = drawn(12, 3, 40, 0), np.random.default_rng(1)
    values = rng.normal(size=40) + (members == 0).any(axis=1)
    there = (members[:, :, None] == np.arange(12)).any(axis=1)
    inside = there / (1 - there.mean(axis=0))
    centred = inside - inside.mean(axis=0)
    errors = (values - values.mean()) / 40
    pairs = sum(
        2 * errors[s] * errors[t] * (centred[s] @ centred[t]) for s, t in combinations(range(40), 2)
    )
    own = sum(errors[t] ** 2 * (inside[t] - inside.mean(axis=0)) @ centred[t] for t in range(40))
    lost = 12 / 11  # of the projections about their mean
    found = mean_of(values, one_stratum(members))
    assert found.shared[0] == pytest.approx(lost * (pairs + own) - own)
    assert found.own[0] == pytest.approx((errors**2).sum())


@pytest.mark.slow
@pytest.mark.parametrize(("size", "each"), [(1, 1), (4, 1), (2, 4)])
def test_a_mean_over_batches_is_as_uncertain_as_its_records_or_their_users_are(
    size: int, each: int
) -> None:
    """The mean of additive scores of N users of variance 1 has the variance 1/N + own."""
    found, means = [], []
    for seed in range(250):
        rng, users = np.random.default_rng(seed), np.arange(40 * each) // each
        members = drawn(40 * each, size, 200, seed)
        values = rng.normal(size=40)[users][members].mean(axis=1)
        one = mean_of(values, one_stratum(members, users))
        found.append(one.shared[0] + one.own[0])
        means.append(values.mean())
    assert np.mean(found) == pytest.approx(np.var(means), rel=0.25)
    assert each > 1 or np.mean(found) == pytest.approx(1 / 40 + 1 / (200 * size), rel=0.1)


@pytest.mark.slow
def test_repetitions_on_the_same_records_count_them_once() -> None:
    """A fixed scorer, ten random halves of 60 records: hardly surer than 60 records are."""
    found, means = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        records, repetitions = rng.normal(size=60), []
        for _ in range(10):
            half = rng.permutation(60)[:30]
            members = half[draw_any(np.arange(30), 2, 100, rng)]
            draws = Draws.of(members, np.zeros(100, dtype=np.int64), members, 60)
            repetitions.append(mean_of(records[members].mean(axis=1), draws))
        value, variance = pooled(repetitions)
        found.append(variance[0])
        means.append(value[0])
    assert 1.1 < np.mean(found) / np.var(means) < 2.6  # 1.8: the covariance counts twice


def test_disjoint_batches_are_counted() -> None:
    assert disjoint([one_stratum(drawn(80, 4, 2000, 0))])[0] == pytest.approx(20, rel=0.05)
    users = np.arange(80) // 8
    assert disjoint([one_stratum(drawn(80, 1, 2000, 0), users)])[0] == pytest.approx(10, rel=0.05)


def test_a_score_that_never_varies_has_no_variance() -> None:
    one = mean_of(np.ones(50), one_stratum(drawn(20, 2, 50, 0)))
    assert pooled([one])[1][0] == 0


def test_repetitions_are_pooled_by_a_plain_loop_over_pairs() -> None:
    """Three scores: of alike influences, of ones that cancel, and of values that lie apart."""
    rng = np.random.default_rng(0)
    shared, own, influence = rng.random((4, 3)), rng.random((4, 3)), rng.random((4, 7, 3))
    influence[:, :, 1:] *= np.array([1, -1, 1, -1])[:, None, None]
    values = rng.random((4, 3)) * [1, 1, 50]
    repetitions = list(map(ProjectedScores, values, influence, shared, own))
    mean, variance = pooled(repetitions)
    assert mean == pytest.approx(values.mean(axis=0))
    for score in range(3):
        across = sum(
            influence[r, :, score] @ influence[s, :, score]
            for r in range(4)
            for s in range(4)
            if r != s
        )
        within = (shared[:, score] + own[:, score]).sum() + 2 * max(across, 0)
        assert variance[score] == pytest.approx(
            max(within / 16, np.var(values[:, score], ddof=1) / 4)
        )
    assert variance[1] == pytest.approx((shared[:, 1] + own[:, 1]).sum() / 16)
    assert variance[2] == pytest.approx(np.var(values[:, 2], ddof=1) / 4)
