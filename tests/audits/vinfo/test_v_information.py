"""Usable information against closed forms: Gaussian classes, perfect predictors, nothing."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from gradaudit.audits.vinfo.repetitions import Repetition
from gradaudit.audits.vinfo.v_information import (
    BatchSets,
    Estimator,
    HeldOutScores,
    LabelledFeatures,
    UsableInformation,
    entropy,
    estimate,
    macro_auroc,
    usable_information,
)
from gradaudit.core.statistics.intervals import student
from gradaudit.families.base import class_weights
from gradaudit.families.forest import ceiling
from gradaudit.games.splits import Batches

UNIFORM = np.array([0.5, 0.5])
SKEWED = np.array([0.85, 0.15])
MEMBERS = ("forest", "logistic", "mlp")


def gaussian_sets(shift: float, seed: int, rows: int = 200, values: int = 2) -> BatchSets:
    """Independent rows with value a at a·shift in the first of three columns."""
    rng = np.random.default_rng(seed)

    def drawn(count: int) -> LabelledFeatures:
        labels = np.arange(count) % values
        features = rng.normal(size=(count, 3))
        features[:, 0] += shift * labels
        return LabelledFeatures(features * 1e-7, labels)

    return BatchSets((drawn(rows // 2), drawn(rows // 2), drawn(rows // 2)), drawn(rows))


def information(shift: float, prior: np.ndarray = UNIFORM) -> float:
    """I(X; A) in nats of two Gaussians of unit variance, by quadrature."""
    grid = np.linspace(-12, 12 + shift, 40_001)
    densities = np.exp(-((grid[:, None] - np.array([0, shift])) ** 2) / 2) / np.sqrt(2 * np.pi)
    mixture = densities @ prior
    ratio = np.where(densities > 0, densities / mixture[:, None], 1)
    return float(((densities * np.log(ratio)) @ prior).sum() * (grid[1] - grid[0]))


def told(
    sets: BatchSets,
    *members: str,
    prior: np.ndarray = UNIFORM,
    seed: int = 0,
    **options: bool,
) -> UsableInformation:
    return usable_information(sets, prior, members, np.random.SeedSequence(seed), **options)


@pytest.mark.parametrize(
    ("shift", "prior"),
    [(0.8, SKEWED), (1.5, UNIFORM), (3.0, SKEWED)],
    ids=["near-skewed", "even", "far-skewed"],
)
def test_logistic_regression_recovers_the_information_of_gaussians(
    shift: float, prior: np.ndarray
) -> None:
    found = np.array(
        [
            told(gaussian_sets(shift, seed, 600), "logistic", prior=prior, seed=seed).information
            for seed in range(20)
        ]
    )
    low, high = student(found)
    truth = information(shift, prior)
    assert low - 0.012 <= truth <= high + 0.012
    assert high - low < 0.05


@pytest.mark.parametrize("nats", [0.1, 0.5])
def test_planted_nats_come_out(nats: float) -> None:
    shift = float(brentq(lambda shift: information(shift) - nats, 0.1, 10))
    found = [told(gaussian_sets(shift, seed, 600), *MEMBERS, seed=seed) for seed in range(2)]
    assert np.mean([each.information for each in found]) == pytest.approx(nats, abs=0.05)


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("seed", range(2))
def test_a_perfect_predictor_of_four_values_has_their_entropy(member: str, seed: int) -> None:
    """But for its doubt, λ = 1/(2(n + 1)) of the prior; a second column would mislead trees."""
    prior = np.array([0.4, 0.3, 0.2, 0.1])
    drawn = gaussian_sets(60.0, seed, 400, 4)
    folds = (replace(fold, features=fold.features[:, :1]) for fold in drawn.folds)
    score = replace(drawn.score, features=drawn.score.features[:, :1])
    found = told(BatchSets(tuple(folds), score), member, prior=prior, seed=seed)
    doubt = 1 / (2 * (3 * 200 + 1))
    lost = -(prior * np.log(1 - doubt * (1 - prior))).sum()
    assert found.entropy == pytest.approx(-(prior * np.log(prior)).sum())
    assert found.information == pytest.approx(found.entropy - lost, abs=1e-5)
    assert (found.auroc, found.family, found.ranker) == (1, member, member)


def test_what_score_batches_say_has_no_part_in_the_choice() -> None:
    """With the score values swapped, the same family is chosen, and it fails."""
    sets = gaussian_sets(3.0, 0, 200)
    swapped = replace(sets, score=replace(sets.score, labels=1 - sets.score.labels))
    right, wrong = (told(own, *MEMBERS) for own in (sets, swapped))
    assert (right.family, right.ranker) == (wrong.family, wrong.ranker)
    assert wrong.information < -1 < 0.3 < right.information
    assert wrong.auroc == pytest.approx(1 - right.auroc)


def test_no_fold_chooses_among_members_that_were_fitted_on_it() -> None:
    """Labels by chance: a member is right of the rows that it saw, and of no others.

    Believed as it is of the rows that it saw, it would lose several nats.
    """
    rng = np.random.default_rng(0)

    def drawn(count: int) -> LabelledFeatures:
        return LabelledFeatures(rng.normal(size=(count, 300)), rng.integers(0, 2, count))

    found = told(BatchSets((drawn(60), drawn(60), drawn(60)), drawn(200)), "logistic")
    assert -0.1 < found.information < 0.1


def test_of_nothing_little_is_lost() -> None:
    found = [told(gaussian_sets(0.0, seed), *MEMBERS, seed=seed) for seed in range(4)]
    values = np.array([each.information for each in found])
    assert -0.02 < values.mean() < 0.01
    assert np.abs(values).max() < 0.05
    assert abs(np.mean([each.auroc for each in found]) - 0.5) < 0.03


def clusters(users: int, seed: int, apart: float = 1.0) -> BatchSets:
    """Many features and few users, whose own marks are as large as what tells their value."""
    rng = np.random.default_rng(seed)
    marks = rng.normal(size=(users, 200))
    value = np.arange(users) % 2
    marks[:, :40] += apart * value[:, None]

    def drawn(members: np.ndarray) -> LabelledFeatures:
        labels = np.arange(64) % 2
        rows = [
            (marks[rng.choice(members[value[members] == a], 16)] + rng.normal(size=(16, 200)))
            for a in labels
        ]
        return LabelledFeatures(np.stack(rows).mean(axis=1), labels)

    folds = np.split(np.arange(users - 6), 3)
    return BatchSets(tuple(map(drawn, folds)), drawn(np.arange(users - 6, users)), 3 * 6 / 4)


def test_what_ranks_is_believed_even_of_few_users() -> None:
    found = [told(clusters(24, seed), "logistic", seed=seed) for seed in range(8)]
    assert np.mean([each.auroc for each in found]) > 0.85
    assert sum(each.family == "logistic" for each in found) >= 7
    assert np.mean([each.information for each in found]) > 0.2


def test_what_ranks_need_not_be_what_is_believed() -> None:
    """Marks of few users hide what the value does to each: the odds are off, the order is not."""
    sets = clusters(24, 2, apart=0.5)
    found = told(sets, "logistic", seed=2)
    assert (found.family, found.ranker) == ("prior", "logistic")
    assert found.information == 0
    assert found.auroc > 0.9


def test_the_members_of_all_turns_say_their_mean_probability() -> None:
    one, other = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[0.5, 0.5], [0.4, 0.6]])
    said = HeldOutScores((), (np.log(one), np.log(other)))
    assert np.exp(said.score) == pytest.approx((one + other) / 2)


def test_the_papers_forest_stays_below_its_ceiling() -> None:
    found = told(gaussian_sets(60.0, 0, 400), "forest", paper=True)
    assert ceiling(2) - 0.03 < found.information <= ceiling(2)


def test_the_prior_alone_is_a_family() -> None:
    found = told(gaussian_sets(3.0, 0))
    assert found.information == pytest.approx(0)
    assert found.auroc == 0.5
    assert found.family == "prior"


def test_the_same_seed_gives_the_same_estimate() -> None:
    first, again = (told(gaussian_sets(1.0, 0, 60), *MEMBERS, seed=5) for _ in range(2))
    assert first == again


def test_batches_weigh_as_the_prior_says() -> None:
    labels = np.array([0, 0, 1, 1])
    prior = np.array([0.9, 0.1])
    weights = class_weights(labels, prior)
    assert weights.mean() == pytest.approx(1)
    assert weights[labels == 1].sum() / weights.sum() == pytest.approx(0.1)
    assert entropy(UNIFORM) == pytest.approx(np.log(2))


def test_an_estimate_is_of_the_rows_of_each_set() -> None:
    """Rows lie fold by fold, and those of the score set last."""
    sets = gaussian_sets(1.5, 0, 40)
    every = (*sets.folds, sets.score)
    batches = tuple(Batches(np.zeros((len(one.labels), 1), int), one.labels) for one in every)
    shares = np.array([0.7, 0.3])
    planned = Repetition(0, False, (), batches, 50.0, 20.0, shares)
    rows = np.concatenate([one.features for one in every])
    adversary, heard = Estimator(("logistic",)), []
    assert adversary.of(planned).tolist() == [0.5, 0.5]
    assert replace(adversary, prior="empirical").of(planned) is shares
    found, permuted = (
        estimate(rows, each, adversary, np.random.SeedSequence(0), heard.append)
        for each in (planned, replace(planned, permuted=True))
    )
    assert found == permuted == told(replace(sets, independent=50.0), "logistic")
    assert heard == [1, 1]


def test_the_auroc_of_several_values_is_the_mean_of_each_against_the_rest() -> None:
    """The first two values are told apart, the third is never thought of."""
    said = np.log([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.8, 0.1, 0.1]])
    labels = np.array([0, 1, 2, 2])
    assert macro_auroc(said, labels) == pytest.approx((2.5 / 3 + 2.5 / 3 + 0.5) / 3)
