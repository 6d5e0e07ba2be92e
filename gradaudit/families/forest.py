"""Random forests, extremely randomised trees, and Mo et al.'s reading of their votes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn import config_context
from sklearn.tree import DecisionTreeRegressor

from gradaudit.families import base
from gradaudit.families.base import (
    Above,
    Family,
    Features,
    Fitted,
    FloatArray,
    IntArray,
    Scale,
    Training,
)

TREES = 50
_PSEUDO_VOTES = 1.0
"""Votes spread over the classes by the prior, beside the trees' own (Laplace for two classes)."""


@dataclass(frozen=True)
class FittedForest(Fitted):
    """A fitted forest."""

    prior: FloatArray
    scale: Scale
    trees: Sequence[Any]

    def votes(self, features: Features) -> FloatArray:
        """Mean of the trees for each target, (rows, targets): shares that vote for each class."""
        read = np.unique(np.concatenate([tree.tree_.feature for tree in self.trees]))
        rows = self.scale.columns(features, read[read >= 0])
        votes = np.mean([tree.predict(rows, check_input=False) for tree in self.trees], axis=0)
        return np.asarray(votes.reshape(len(rows), -1), dtype=np.float64)

    def log_probabilities(self, features: Features) -> FloatArray:
        """Logs of the votes with a pseudo-vote a class, so none is infinite."""
        extra = _PSEUDO_VOTES * len(self.prior)
        smoothed = (TREES * self.votes(features) + extra * self.prior) / (TREES + extra)
        return np.asarray(np.log(smoothed))


class Forest(Family):
    """Fifty fully grown trees (Mo et al. 2021, section 4.2; Li et al. 2024, 5.1.3).

    A class's probability is (votes + n·π)/(50 + n), with n classes and the training prior π:
    Laplace's rule where π is uniform. It is never 0, and at most 51/52 between two classes.
    Every tree sees a bootstrap sample in which classes have the shares of π; it leaves out rows of
    classes that are too frequent (C. Chen et al., "Using random forest to learn imbalanced data",
    2004), since weights do not move the votes of pure leaves. Standardised features, since trees
    treat differences below 1e-7 as none. Trees are regressed on the classes' indicators: the sum of
    their variances is Gini's impurity, and a leaf's mean are its votes.
    """

    name = "forest"
    summary = "Random forest of 50 trees, votes smoothed by Laplace's rule."
    splitter: ClassVar[str] = "best"
    bootstrap: ClassVar[bool] = True

    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
        if not training.scale.kept.any():
            return base.FittedPrior(training.prior)
        indicators = np.eye(len(training.prior))[training.labels]
        return self._grown(training, indicators, generator)

    def fit_ordered(self, training: Training, generator: np.random.Generator) -> Above:
        """Fit trees that all thresholds share: they are regressed on "more than i" of every i.

        A split is sought that does well at all thresholds together, which finds more than a forest
        for each (``benchmarks/ordered_forests.py``) at a fraction of the cost.
        Source: H. Blockeel et al., "Top-down induction of clustering trees" (1998).
        """
        values = len(training.prior)
        more = training.prior[::-1].cumsum()[-2::-1]
        if not training.scale.kept.any():
            return lambda features: np.tile(more, (len(features), 1))
        above = training.labels[:, None] > np.arange(values - 1)
        forest, extra = self._grown(training, above.astype(float), generator), 2 * _PSEUDO_VOTES
        return lambda rows: (TREES * forest.votes(rows) + extra * more) / (TREES + extra)

    def _grown(
        self, training: Training, targets: FloatArray, generator: np.random.Generator
    ) -> FittedForest:
        """Trees for targets (rows, targets), one after the other: the same for any workers."""
        rows, labels = training.scale.columns(training.features), training.labels
        trees = []
        for state in generator.integers(2**31, size=TREES):
            tree = DecisionTreeRegressor(
                max_features="sqrt", splitter=self.splitter, random_state=int(state)
            )
            seen = _seen(labels, training.prior, generator, self.bootstrap)
            times = np.bincount(seen, minlength=len(labels)).astype(np.float64)
            with config_context(skip_parameter_validation=True):  # half the time of small trees
                tree.fit(rows, targets, sample_weight=times, check_input=False)
            trees.append(tree)
        return FittedForest(training.prior, training.scale, trees)

    def seconds(self, rows: int, features: int) -> float:
        """A tree sorts √features columns at every depth."""
        per_tree = 2e-3 + 4e-8 * rows * math.log2(rows) * math.sqrt(features)
        return TREES * per_tree + 1e-7 * rows * features

    def seconds_ordered(self, rows: int, features: int, values: int) -> float:
        """Every further threshold is one more target of the same trees."""
        return (1 + 0.2 * (values - 2)) * self.seconds(rows, features)


def _seen(
    labels: IntArray, prior: FloatArray, generator: np.random.Generator, bootstrap: bool
) -> IntArray:
    """Rows for one tree, with classes in the prior's shares and as many as the rarest allows."""
    counts = np.bincount(labels, minlength=len(prior))
    wanted = np.maximum(1, np.round(prior * (counts / prior).min())).astype(np.int64)
    return np.concatenate(
        [
            generator.choice(np.flatnonzero(labels == value), count, replace=bootstrap)
            for value, count in enumerate(wanted)
        ]
    )


class ExtraTrees(Forest):
    """Fifty trees with random thresholds, on all rows instead of bootstrap samples.

    Source: P. Geurts et al., "Extremely randomized trees" (2006), table 1.
    """

    name = "extra-trees"
    summary = "50 trees with random thresholds, votes smoothed by Laplace's rule."
    splitter = "random"
    bootstrap = False


@dataclass(frozen=True)
class PaperForest(Fitted):
    """The softmax of a forest's votes (Mo et al. 2021, eq. 8).

    Votes lie in [0, 1], so no probability exceeds e/(e + m − 1) among m values, and the information
    never exceeds ``ceiling(m)``, whatever the forest knows.
    """

    forest: FittedForest

    @property
    def prior(self) -> FloatArray:  # type: ignore[override]
        """The forest's."""
        return self.forest.prior

    def log_probabilities(self, features: Features) -> FloatArray:
        """Votes less their log-sum-exp, (rows, classes)."""
        return base.normalised(self.forest.votes(features))


def ceiling(values: int) -> float:
    """The most nats that the softmax of votes can show of a uniform value: 0.38 of two."""
    return float(np.log(values) - np.log1p((values - 1) / np.e))
