"""Scores against their definitions, and intervals against the scores' own law."""

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from gradaudit.inference.batches import draw_batches
from gradaudit.inference.scores import Game
from gradaudit.inference.statistics import auroc, log_odds, true_positives_at


def probabilities(trials: int, values: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(trials) % values
    scores = rng.normal(size=(trials, values))
    scores[np.arange(trials), labels] += 1
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)), labels


@pytest.mark.parametrize("values", [2, 4])
def test_scores_are_those_of_their_definitions(values: int) -> None:
    found, labels = probabilities(300, values, 0)
    game = Game(found, labels, np.arange(300))
    assert game.asr().value == np.mean(found.argmax(axis=1) == labels)
    expected = roc_auc_score(
        labels,
        np.exp(found) if values > 2 else np.exp(found[:, 1]),
        multi_class="ovr",
        average="macro",
    )
    np.testing.assert_allclose(game.auroc().value, expected)
    np.testing.assert_allclose(game.log_loss().value, log_loss(labels, np.exp(found)))


def test_ties_count_half() -> None:
    scores, positive = np.array([1.0, 1.0, 0.0, 2.0]), np.array([True, False, False, False])
    assert auroc(scores, positive, np.ones((1, 4)))[0] == pytest.approx(1.5 / 3)
    blind = Game(np.log(np.full((10, 2), 0.5)), np.arange(10) % 2, np.arange(10))
    assert blind.asr().value == 0.5
    assert blind.auroc().value == 0.5


def test_weights_are_repetitions() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 8, 30).astype(float), rng.random(30) < 0.4
    weights = rng.integers(0, 4, (5, 30))
    for statistic in (auroc, lambda *a: true_positives_at(*a, limit=0.2)):
        found = statistic(scores, positive, weights.astype(float))
        for row, value in zip(weights, found, strict=True):
            each = np.repeat(np.arange(30), row)
            alone = statistic(scores[each], positive[each], np.ones((1, len(each))))
            np.testing.assert_allclose(value, alone[0])


def test_true_positives_are_counted_above_the_threshold_that_one_in_a_hundred_passes() -> None:
    scores = np.r_[np.arange(200.0), [150.5, 197.5, 198.5, 199.5]]
    positive = np.arange(204) >= 200
    assert true_positives_at(scores, positive, np.ones((1, 204)))[0] == 3 / 4
    assert true_positives_at(scores, positive, np.ones((1, 204)), 0.0)[0] == 1 / 4


def test_the_true_positive_rate_is_of_one_value_or_the_average() -> None:
    found, labels = probabilities(400, 2, 1)
    game = Game(found, labels, np.arange(400))
    each = [game.tpr_at_1pct_fpr(value).value for value in (0, 1)]
    assert game.tpr_at_1pct_fpr().value == pytest.approx(np.mean(each))


def test_the_advantage_is_the_share_of_errors_spared() -> None:
    found, labels = probabilities(500, 2, 0)
    game = Game(found, labels, np.arange(500))
    rate = game.asr()
    advantage = game.advantage(0.5)
    assert advantage.value == pytest.approx((rate.value - 0.5) / 0.5)
    assert advantage.interval == pytest.approx(tuple((end - 0.5) / 0.5 for end in rate.interval))
    assert game.advantage(0.99).value == 0


def test_log_odds_do_not_saturate() -> None:
    sure = np.array([[-40.0, -(2.0**-60)], [-50.0, -(2.0**-60)]])
    odds = log_odds(sure, 1)
    assert odds[1] - odds[0] == pytest.approx(10)


def test_all_scores_have_an_interval_around_the_value() -> None:
    found, labels = probabilities(90, 3, 0)
    for score in Game(found, labels, np.arange(90)).all(1 / 3).values():
        assert score.interval[0] <= score.value <= score.interval[1]
        assert score.interval[0] < score.interval[1]


def test_the_same_seed_gives_the_same_interval() -> None:
    found, labels = probabilities(90, 3, 0)
    first, again, other = (
        Game(found, labels, np.arange(90), seed=seed).auroc().interval for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_perfect_game_does_not_prove_perfection() -> None:
    labels = np.arange(40) % 2
    found = np.log(np.where(np.eye(2)[labels] == 1, 0.99, 0.01))
    game = Game(found, labels, np.arange(40))
    assert game.asr().interval == (pytest.approx(0.025 ** (1 / 40)), 1)
    assert game.auroc().interval == (pytest.approx(0.025 ** (1 / 20)), 1)


def world(records: int, size: int, trials: int, seed: int) -> Game:
    """A Bayesian adversary of batches of Gaussian records; records in a batch share its value."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2, records)
    shift = 0.5 / np.sqrt(size) * 2
    values = rng.normal(size=records) + shift * codes
    batches = draw_batches(codes, np.arange(records), size, trials // 2, rng)
    odds = (values[batches.indices].mean(axis=1) - shift / 2) * shift * size
    found = -np.logaddexp(0, np.stack([odds, -odds], axis=1))
    return Game(found, batches.labels, batches.indices, replicates=150)


@pytest.mark.parametrize(("records", "size", "trials"), [(150, 1, 60), (200, 4, 200)])
def test_intervals_of_batches_that_share_records_cover(
    records: int, size: int, trials: int
) -> None:
    truth = np.mean([world(20_000, size, 8000, seed).auroc().value for seed in (900, 901)])
    intervals = [world(records, size, trials, seed).auroc().interval for seed in range(100)]
    covered = np.mean([low <= truth <= high for low, high in intervals])
    assert 0.88 <= covered <= 1
    assert np.mean([high - low for low, high in intervals]) < 0.45


def test_intervals_over_users_cover_where_those_over_records_do_not() -> None:
    covered = {"users": 0, "records": 0}
    for seed in range(100):
        rng = np.random.default_rng(seed)
        users = np.repeat(np.arange(30), 20)
        labels = users % 2
        right = np.repeat(rng.random(30) < 0.7, 20)
        found = np.log(np.where((np.eye(2)[labels] == 1) == right[:, None], 0.9, 0.1))
        for name, clusters in (("users", users), ("records", np.arange(600))):
            low, high = Game(found, labels, clusters, replicates=200).asr().interval
            covered[name] += low <= 0.7 <= high
    assert covered["users"] >= 88
    assert covered["records"] <= 60


def test_a_batch_of_few_users_counts_once_for_each_of_them() -> None:
    trials, users = 400, 40
    generator = np.random.default_rng(0)
    pairs = generator.integers(0, users // 2, (trials, 1)) * 2 + np.array([0, 1])
    labels = np.arange(trials) % 2
    certain = np.log(np.where(np.eye(2)[labels] > 0, 1 - 1e-9, 1e-9))
    clusters = np.repeat(pairs, 8, axis=1)
    game = Game(log_probabilities=certain, labels=labels, clusters=clusters)
    low, high = game.asr().interval
    assert low == pytest.approx(0.025 ** (1 / 20))
    assert high == 1
