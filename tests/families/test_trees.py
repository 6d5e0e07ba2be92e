"""Trees against what they must say exactly, a walk row by row, and scikit-learn's forest."""

import tracemalloc

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.metrics import roc_auc_score

from gradaudit.families import trees as growing
from gradaudit.families.forest import times_drawn
from gradaudit.families.trees import Trees, grow_trees


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def grow(features: np.ndarray, targets: np.ndarray, times: np.ndarray, seed: int = 0) -> Trees:
    return grow_trees(np.ascontiguousarray(features.T), targets, times, generator(seed))


def bootstraps(trees: int, rows: int) -> np.ndarray:
    return generator(7).multinomial(rows, np.full(rows, 1 / rows), size=trees)


@pytest.mark.parametrize("columns", [1, 40])
@pytest.mark.parametrize("halfway", [True, False])
def test_what_a_tree_sees_and_can_tell_apart_it_knows(columns: int, halfway: bool) -> None:
    features = generator(1).normal(size=(60, columns))
    targets = generator(2).integers(2, size=(60, 3)).astype(float)
    every = np.ones((5, 60), dtype=np.int64)
    trees = grow_trees(features.T.copy(), targets, every, generator(), halfway=halfway)
    np.testing.assert_array_equal(trees.votes(features), targets)


def test_rows_that_are_alike_share_their_mean() -> None:
    features = np.array([[0.0], [0.0], [0.0], [1.0]])
    targets, times = np.array([[1.0], [0.0], [0.0], [1.0]]), np.array([[2, 1, 1, 1]])
    np.testing.assert_allclose(grow(features, targets, times).votes(features[[0, 3]]), [[0.5], [1]])


def test_of_few_rows_one_column_a_stump_cuts_half_way() -> None:
    trees = grow(np.array([[2.0], [6.0]]), np.array([[0.0], [1.0]]), np.ones((3, 2), dtype=int))
    np.testing.assert_array_equal(trees.cuts[:3], 4)
    np.testing.assert_array_equal(trees.votes(np.array([[4.0], [4.1]])), [[0], [1]])


def test_rows_that_are_not_drawn_change_nothing() -> None:
    features, targets = generator(1).normal(size=(50, 9)), generator(2).integers(2, size=(50, 2))
    times = bootstraps(4, 50)
    times[:, 30:] = 0
    told = grow(features, targets.astype(float), times).votes(features)
    other = grow(features[:30], targets[:30].astype(float), times[:, :30]).votes(features)
    np.testing.assert_array_equal(told, other)


def test_votes_are_those_of_a_walk_down_every_tree() -> None:
    features, targets = generator(1).normal(size=(80, 12)), generator(2).random((80, 1)).round()
    trees, asked = grow(features, targets, bootstraps(6, 80)), generator(3).normal(size=(20, 12))

    def leaf(node: int, row: np.ndarray) -> np.ndarray:
        while trees.columns[node] >= 0:
            node = trees.left[node] + (row[trees.columns[node]] > trees.cuts[node])
        return trees.values[node]

    walked = [np.mean([leaf(tree, row) for tree in range(6)], axis=0) for row in asked]
    np.testing.assert_allclose(trees.votes(asked), walked)
    moved = trees.of_columns(np.arange(12) * 2)
    np.testing.assert_array_equal(moved.votes(np.repeat(asked, 2, axis=1)), trees.votes(asked))


def test_a_node_takes_the_cut_that_explains_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cuts of the roots of three trees, row by row."""
    features, targets = generator(1).normal(size=(30, 25)).round(1), generator(2).random((30, 2))
    targets, times = targets.round(), bootstraps(3, 30)
    tried = []
    between = growing._Growing._between

    def noted(self: growing._Growing, level: growing._Level, columns: np.ndarray) -> np.ndarray:
        cuts = between(self, level, columns)
        tried.append((columns, cuts))
        return cuts

    monkeypatch.setattr(growing._Growing, "_between", noted)
    trees = grow(features, targets, times)
    for tree, (columns, cuts) in enumerate(zip(*(each.T for each in tried[0]), strict=True)):
        often = times[tree].astype(float)
        explained = []
        for column, cut in zip(columns, cuts, strict=True):
            right = features[:, column] > cut
            sides = [often * right, often * ~right]
            gains = [
                ((side @ targets) ** 2).sum() / side.sum() if side.any() else 0 for side in sides
            ]
            explained.append(sum(gains) if all(side.any() for side in sides) else 0)
        best = int(np.argmax(np.round(explained, 4)))
        assert (trees.columns[tree], trees.cuts[tree]) == (columns[best], cuts[best])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("halfway", [True, False])
def test_neighbouring_numbers_and_a_rare_value_are_told_apart(dtype: type, halfway: bool) -> None:
    """A cut half way between 1 + ε and 1 + 2ε rounds to the larger; of 400 rows 3 are not zero."""
    column = np.zeros((1, 400), dtype)
    column[0, :3] = 1 + np.arange(3) * np.finfo(dtype).eps
    targets = np.array([1.0, 0, 1] + [0] * 397)[:, None]
    times = np.ones((20, 400), dtype=np.int64)
    trees = grow_trees(column, targets, times, generator(), halfway=halfway)
    np.testing.assert_array_equal(trees.votes(column.T), targets)


@pytest.mark.parametrize("unit", [1e-40, 3e38])
@pytest.mark.parametrize("halfway", [True, False])
def test_cuts_stay_within_what_the_precision_holds(unit: float, halfway: bool) -> None:
    features = generator(1).uniform(-1, 1, size=(40, 3))
    targets = generator(2).integers(2, size=(40, 1)).astype(float)
    scaled, times = (unit * features).astype(np.float32), np.ones((3, 40), dtype=np.int64)
    trees = grow_trees(scaled.T.copy(), targets, times, generator(), halfway=halfway)
    np.testing.assert_array_equal(trees.votes(scaled), targets)


def test_trees_see_classes_by_the_prior_and_rows_of_a_class_alike() -> None:
    """Of 40, 10 and 50 rows under (½, ¼, ¼) the rarest for its share is the second, of 10."""
    labels = np.repeat([0, 1, 2], [40, 10, 50])
    prior = np.array([0.5, 0.25, 0.25])
    for bootstrap in (True, False):
        times = np.stack(
            [times_drawn(labels, prior, generator(seed), bootstrap) for seed in range(20)]
        ).reshape(-1, 100)
        by_class = np.stack([times[:, labels == value].sum(axis=1) for value in range(3)])
        np.testing.assert_array_equal(by_class, np.tile([[20], [10], [10]], len(times)))
        variance = 0.5 * (1 - 1 / 40) if bootstrap else 0.25  # of 20 draws among 40
        assert times[:, :40].var() == pytest.approx(variance, rel=0.05)
        assert times[:, :40].mean(axis=0) == pytest.approx(np.full(40, 0.5), abs=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [30, 300])
def test_of_sparse_columns_a_forest_tells_as_much_as_that_of_scikit_learn(columns: int) -> None:
    """Every tenth column is seldom not zero, nine times as often in one class as in the other."""

    def drawn(rows: int, source: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(rows) % 2
        shares = np.full((rows, columns), 0.05)
        shares[:, ::10] = np.where(labels, 0.09, 0.01)[:, None]
        values = source.normal(size=shares.shape)
        return np.where(source.random(shares.shape) < shares, values, 0), labels

    (features, labels), (asked, truth) = drawn(300, generator(1)), drawn(1000, generator(2))
    ours = grow(features, labels[:, None].astype(float), bootstraps(50, 300)).votes(asked)[:, 0]
    forest = RandomForestRegressor(50, max_features="sqrt", random_state=0)
    theirs = forest.fit(features, labels).predict(asked)
    assert roc_auc_score(truth, ours) > roc_auc_score(truth, theirs) - 0.015


@pytest.mark.slow
def test_a_forest_says_about_what_that_of_scikit_learn_does() -> None:
    """A target of two steps, told by two of six columns, in rows of which some are wrong."""
    features = generator(1).normal(size=(300, 6))
    truth = (features[:, 0] > 0).astype(float) * (features[:, 1] < 0.5)
    targets = np.where(generator(2).random(300) < 0.1, 1 - truth, truth)[:, None]
    asked = generator(3).normal(size=(500, 6))
    ours = grow(features, targets, bootstraps(200, 300)).votes(asked)[:, 0]
    forest = RandomForestRegressor(200, max_features="sqrt", random_state=0)
    theirs = forest.fit(features, targets[:, 0]).predict(asked)
    right = (asked[:, 0] > 0) * (asked[:, 1] < 0.5)
    errors = [float(((said - right) ** 2).mean()) for said in (ours, theirs)]
    assert errors[0] < errors[1] + 0.01
    assert np.corrcoef(ours, theirs)[0, 1] > 0.95


def test_memory_of_a_level_does_not_go_with_nodes_times_rows() -> None:
    features = generator(1).normal(size=(3000, 4))
    targets = (features[:, :1] + generator(2).normal(size=(3000, 1)) > 0).astype(float)
    growing_ = growing._Growing(np.ascontiguousarray(features.T), generator(), halfway=True)
    level = growing_.root_level(targets, bootstraps(50, 3000))
    for _ in range(2):
        level = growing_.divided(level, growing_.best(level))
    tracemalloc.start()
    growing_.best(level)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(level.nodes) > 150
    assert peak < 4 * len(level.nodes) * 3000
