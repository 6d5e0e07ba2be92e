"""Scores against their definitions, and intervals against the scores' own law."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import log_loss, roc_auc_score, roc_curve

from gradaudit.core.statistics.u_statistic import Draws, pooled, project
from gradaudit.games.scores import (
    Score,
    Scores,
    Trials,
    auroc,
    gain,
    log_odds,
    losses,
    placements,
    roc,
    tpr_at_fpr,
)
from gradaudit.games.splits import draw_any


def probabilities(trials: int, values: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(trials) % values
    scores = rng.normal(size=(trials, values))
    scores[np.arange(trials), labels] += 1
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)), labels


def scores_of(labels: np.ndarray, members: np.ndarray | None = None) -> Scores:
    members = np.arange(len(labels))[:, None] if members is None else members
    return Scores([Trials(labels, Draws.of(members, labels, members))])


@pytest.mark.parametrize("values", [2, 4])
def test_scores_are_those_of_their_definitions(values: int) -> None:
    found, labels = probabilities(300, values, 0)
    scores = scores_of(labels)
    rates = scores.rates([found])
    assert rates["asr"].value == pytest.approx(np.mean(found.argmax(axis=1) == labels))
    expected = roc_auc_score(
        labels,
        np.exp(found) if values > 2 else np.exp(found[:, 1]),
        multi_class="ovr",
        average="macro",
    )
    np.testing.assert_allclose(rates["auroc"].value, expected)
    np.testing.assert_allclose(scores.log_loss([found]).value, log_loss(labels, np.exp(found)))
    hit = [tpr_at_fpr(log_odds(found, v), labels == v, 0.01).rate for v in range(values)]
    assert rates["tpr_at_1pct_fpr"].value == pytest.approx(np.mean(hit))


def test_ties_count_half() -> None:
    scores, positive = np.array([1.0, 1.0, 0.0, 2.0]), np.array([True, False, False, False])
    assert auroc(scores, positive).value == pytest.approx(1.5 / 3)
    assert placements(scores, positive).tolist() == [0.5, 0.5, 1, 0]
    labels = np.arange(10) % 2
    blind = scores_of(labels).rates([np.log(np.full((10, 2), 0.5))])
    assert (blind["asr"].value, blind["auroc"].value) == (0.5, 0.5)


def test_the_auroc_is_the_share_of_pairs_in_the_right_order_and_each_sides_mean_placement() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        scores, positive = rng.integers(0, 8, 30).astype(float), rng.random(30) < 0.4
        pairs = scores[positive][:, None] - scores[~positive]
        expected, placed = ((pairs > 0) + (pairs == 0) / 2).mean(), placements(scores, positive)
        for found in (
            auroc(scores, positive).value,
            placed[positive].mean(),
            placed[~positive].mean(),
        ):
            assert found == pytest.approx(expected)
        assert expected == pytest.approx(roc_auc_score(positive, scores))


def test_true_positives_are_counted_above_the_threshold_that_one_in_a_hundred_passes() -> None:
    scores = np.r_[np.arange(200.0), [150.5, 197.5, 198.5, 199.5]]
    positive = np.arange(204) >= 200
    assert tpr_at_fpr(scores, positive, 0.01).rate == 3 / 4
    assert tpr_at_fpr(scores, positive, 0.0).rate == 1 / 4
    assert tpr_at_fpr(scores, positive, 1.0).above.all()


def test_log_odds_do_not_saturate() -> None:
    sure = np.array([[-40.0, -(2.0**-60)], [-50.0, -(2.0**-60)]])
    odds = log_odds(sure, 1)
    assert odds[1] - odds[0] == pytest.approx(10)


def test_all_scores_have_an_interval_around_the_value() -> None:
    found, labels = probabilities(90, 3, 0)
    scores = scores_of(labels)
    for score in (*scores.rates([found]).values(), scores.log_loss([found])):
        assert score.interval[0] <= score.value <= score.interval[1]
        assert score.interval[0] < score.interval[1]


@pytest.mark.parametrize("records", [1, 10])
def test_the_interval_of_a_mean_loss_is_students(records: int) -> None:
    """With a degree of freedom for each separate batch less one for each value, one at least."""
    found, labels = probabilities(90, 3, 0)
    members = labels + 3 * (np.arange(90) // 3 % records)
    scores = scores_of(labels, members[:, None])
    each = losses(found, labels)
    errors = (each - each.mean())[:, None] / 90
    _, (variance,) = pooled(
        [project(each.mean(keepdims=True), errors, scores.repetitions[0].draws)]
    )
    margin = stats.t.ppf(0.975, max(scores.disjoint.sum() - 3, 1)) * np.sqrt(variance)
    low, high = scores.log_loss([found]).interval
    assert low == pytest.approx(max(0, each.mean() - margin))
    assert high == pytest.approx(each.mean() + margin)


@pytest.mark.parametrize(
    ("variance", "count"), [(0.24 / 30, 30), (0.24 / 150, 150), (1e-9, 200), (0.0, 20)]
)
@pytest.mark.parametrize(("room", "caution"), [(2.5, 1.5), (20.0, 1.5), (40.0, 1.25)])
def test_a_rate_is_as_of_so_many_trials_as_its_variance_says(
    variance: float, count: int, room: float, caution: float
) -> None:
    """Of 20 separate batches: between Wilson's ends, (p − .6)² ≤ t² p(1 − p)/n."""
    scores = scores_of(np.arange(600) % 2)
    scores.__dict__.update(disjoint=np.array([10.0, 10.0]), room=np.array([room, 2 * room]))
    found, quantile = scores._rate(0.6, variance), stats.t.ppf(0.975, 18)
    for end in found.interval:
        expected = quantile**2 * end * (1 - end) * caution / count
        assert (end - 0.6) ** 2 == pytest.approx(expected)
    assert found.interval[0] < found.value == 0.6 < found.interval[1]


def test_few_negatives_tell_no_lower_end_of_the_true_positive_rate() -> None:
    """Below 100 separate batches of other values, none lies at 1 % for sure."""
    for number, starts_at_zero in ((80, True), (400, False)):
        labels = np.arange(number) % 2
        found = np.log(np.where(np.eye(2)[labels] > 0, 0.9, 0.1))
        rate = scores_of(labels).rates([found])["tpr_at_1pct_fpr"]
        assert rate.value == 1
        assert (rate.interval[0] == 0) is starts_at_zero


def test_the_threshold_of_one_in_a_hundred_may_lie_elsewhere() -> None:
    """In eight of ten samples of so many negatives."""
    low, at, high = scores_of(np.arange(1000) % 2)._false_positives
    assert at == 0.01
    assert (low, high) == pytest.approx(tuple(stats.binom.ppf([0.1, 0.9], 500, 0.01) / 500))
    assert scores_of(np.arange(20) % 2)._false_positives == (0, 0.01, 0.01)


def test_room_is_of_one_repetition_and_separate_batches_of_all() -> None:
    """Two repetitions that score on other records have twice the room of one, and of three."""
    labels, rng = np.repeat([0, 1], 300), np.random.default_rng(0)
    members = [draw_any(np.arange(40), 2, 600, rng) + 40 * place for place in range(2)]
    trials = [Trials(labels, Draws.of(each, labels, each, 80)) for each in members]
    both, alone = Scores(trials), [Scores([each]).disjoint for each in trials]
    assert both.room == pytest.approx(np.mean(alone, axis=0))
    np.testing.assert_allclose(both.room, 40 / 2, rtol=0.02)
    np.testing.assert_allclose(both.disjoint, 80 / 2, rtol=0.02)


def test_a_perfect_game_proves_no_more_than_its_separate_batches() -> None:
    labels = np.arange(400) % 2
    found = np.log(np.where(np.eye(2)[labels] == 1, 0.99, 0.01))
    rng = np.random.default_rng(0)
    members = draw_any(np.arange(40), 2, 400, rng) + 40 * labels[:, None]
    rates = scores_of(labels, members).rates([found])
    for score in rates.values():
        assert score.value == score.interval[1] == 1
    assert 0.8 < rates["asr"].interval[0] == rates["auroc"].interval[0] < 0.9
    assert rates["tpr_at_1pct_fpr"].interval[0] == 0, "1 % of 20 separate batches is none"


@pytest.mark.parametrize(("counts", "negatives"), [((6, 3, 1), 4), ((5, 5), 5), ((7,), 7)])
def test_negatives_are_what_is_not_of_the_commonest_value(
    counts: tuple[int, ...], negatives: int
) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    assert scores_of(labels).fewest_negatives == pytest.approx(negatives)


def test_a_gain_is_a_difference_in_units() -> None:
    found = gain(Score(0.8, (0.7, 0.9)), Score(0.5, (0.45, 0.55)), 0.5)
    assert found.value == pytest.approx(0.6)
    margin = 2 * np.hypot(0.1, 0.05)
    assert found.interval == pytest.approx((0.6 - margin, 0.6 + margin))


def game(records: int, size: int, trials: int, seed: int) -> tuple[Scores, np.ndarray]:
    """A Bayesian adversary of batches of Gaussian records; records in a batch share its value."""
    rng = np.random.default_rng(seed)
    shift = 1 / np.sqrt(size)
    codes = np.arange(records) % 2
    values = rng.normal(size=records) + shift * codes
    labels = np.repeat([0, 1], trials // 2)
    drawn = [draw_any(np.flatnonzero(codes == v), size, trials // 2, rng) for v in (0, 1)]
    members = np.concatenate(drawn)
    odds = (values[members].mean(axis=1) - shift / 2) * shift * size
    found = -np.logaddexp(0, np.stack([odds, -odds], axis=1))
    return scores_of(labels, members), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("records", "size", "trials"), [(150, 1, 60), (200, 4, 400), (400, 8, 400)]
)
def test_intervals_of_batches_that_share_records_cover(
    records: int, size: int, trials: int
) -> None:
    """A unit gap in units of the batches' deviation: an AUROC of Φ(1/√2), an ASR of Φ(1/2)."""
    truth, covered = {"auroc": 0.760250, "asr": 0.691462}, {"auroc": 0, "asr": 0}
    for seed in range(100):
        scores, found = game(records, size, trials, seed)
        rates = scores.rates([found])
        for name in covered:
            low, high = rates[name].interval
            covered[name] += low <= truth[name] <= high
            assert high - low < 0.45
    assert min(covered.values()) >= 90


def test_the_area_under_the_roc_curve_is_the_auroc_with_ties_too() -> None:
    draw = np.random.default_rng(0)
    for digits in (8, 1, 0):
        scores = np.round(draw.normal(size=300), digits)
        positive = scores + draw.normal(size=300) > 0.3
        false, _, _ = roc_curve(positive, scores, drop_intermediate=False)
        rates = np.unique(np.concatenate([false, np.linspace(0, 1, 4001)]))
        at = roc(scores, positive, rates)
        below = roc(scores, positive, np.nextafter(rates[1:], 0.0))
        area = float(np.sum(np.diff(rates) * (at[:-1] + below) / 2))
        assert area == pytest.approx(roc_auc_score(positive, scores), abs=1e-9)
        assert area == pytest.approx(auroc(scores, positive).value, abs=1e-9)
        assert at[-1] == 1.0
        assert (np.diff(at) >= 0).all()
