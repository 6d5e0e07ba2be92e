"""Random forests, extremely randomised trees, and Mo et al.'s reading of their votes.

A forest may read the norms of a gradient and of its parts instead of its elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradaudit.families.base import (
    Above,
    Family,
    Features,
    Fitted,
    FittedPrior,
    FloatArray,
    IntArray,
    Training,
    normalised,
)
from gradaudit.families.trees import Trees, grow_trees

TREES = 50
_PSEUDO_VOTES = 1.0
"""Votes spread over the classes by the prior, beside the trees' own (Laplace for two classes)."""
BLOCKS = 32
"""Number of parts of a gradient whose norms are features; of a dense layer, groups of units."""
_IN_CACHE = 1 << 16
"""Number of elements whose norms are taken at a time."""


@dataclass(frozen=True)
class FittedForest(Fitted):
    """A fitted forest."""

    prior: FloatArray
    trees: Trees

    def votes(self, features: Features) -> FloatArray:
        """Returns the mean of the trees for each target, (rows, targets): shares of votes."""
        return self.trees.votes(features)

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
    2004), since weights do not move the votes of pure leaves. Trees are regressed on the classes'
    indicators: the sum of their variances is Gini's impurity, and a leaf's mean are its votes.

    A node tries one cut in each of 3√columns columns, half way between two of its rows (where these
    are alike, beside the value that they share), and Breiman's trees all cuts of √columns. In
    ``benchmarks/coverage/forests.py`` ours tell 0.005 to 0.014 more by AUROC on the sample; without
    cuts beside shared values it was within 0.006 on Adult, RAVDESS and UTKFace. Of Gaussian classes
    (folds of 64 rows, 512 to score, 1 to 4 deviations apart) they tell up to 0.07 nats more where
    one of 300 columns tells, and 0.014 less where each of 30 does.
    """

    name = "forest"
    summary = "Random forest of 50 trees, votes smoothed by Laplace's rule."
    size = f"{TREES} trees"
    bootstrap: ClassVar[bool] = True

    def train(self, training: Training, generator: np.random.Generator) -> Fitted:
        """Fit the forest; the prior where no feature varies."""
        if not training.rows.scale.kept.any():
            return FittedPrior(training.prior)
        indicators = np.eye(len(training.prior))[training.labels]
        return FittedForest(training.prior, self._grown(training, indicators, generator))

    def fit_ordered(self, training: Training, generator: np.random.Generator) -> Above:
        """Fit trees that all thresholds share: they are regressed on "more than i" of every i.

        A split is sought that does well at all thresholds together, which finds more than a forest
        for each (``benchmarks/coverage/forests.py``) at a fraction of the cost.
        Source: H. Blockeel et al., "Top-down induction of clustering trees" (1998).
        """
        values = len(training.prior)
        more = training.prior[::-1].cumsum()[-2::-1]
        if not training.rows.scale.kept.any():
            return lambda features: np.tile(more, (len(features), 1))
        above = training.labels[:, None] > np.arange(values - 1)
        trees, extra = self._grown(training, above.astype(float), generator), 2 * _PSEUDO_VOTES
        return lambda rows: (TREES * trees.votes(rows) + extra * more) / (TREES + extra)

    def _grown(
        self, training: Training, targets: FloatArray, generator: np.random.Generator
    ) -> Trees:
        times = times_drawn(training.labels, training.prior, generator, self.bootstrap)
        trees = grow_trees(training.rows.varying, targets, times, generator, halfway=self.bootstrap)
        return trees.of_columns(np.flatnonzero(training.rows.scale.kept))


def times_drawn(
    labels: IntArray, prior: FloatArray, generator: np.random.Generator, bootstrap: bool
) -> IntArray:
    """Returns how often each tree draws a row, (trees, rows).

    Classes have the prior's shares, and as many rows as the rarest allows.
    """
    counts = np.bincount(labels, minlength=len(prior))
    wanted = np.maximum(1, np.round(prior * (counts / prior).min())).astype(np.int64)
    times = np.zeros((TREES, len(labels)), dtype=np.int64)
    for value, (count, size) in enumerate(zip(wanted, counts, strict=True)):
        if bootstrap:
            of_class = generator.multinomial(count, np.full(size, 1 / size), size=TREES)
        else:
            of_class = generator.permuted(np.tile(np.arange(size) < count, (TREES, 1)), axis=1)
        times[:, labels == value] = of_class
    return times


class ExtraTrees(Forest):
    """Fifty trees on all rows instead of bootstrap samples, with cuts anywhere between two rows.

    Source: P. Geurts et al., "Extremely randomized trees" (2006), table 1, where a cut lies
    anywhere between the least and the largest value of a node.
    """

    name = "extra-trees"
    summary = "50 trees with random thresholds, votes smoothed by Laplace's rule."
    bootstrap = False


class Norms(Forest):
    """Fifty trees on norms of the gradient, which show a scale that no single element shows.

    The trees are those of the forest on elements (Mo et al. 2021, section 4.2). Records whose
    inputs are larger, or have fewer entries that are not zero, give gradients that are larger or
    sparser with both signs: a linear reader has nothing to go by, and a tree of single elements
    needs many cuts. Norms are few, so this forest is cheap. In ``benchmarks/coverage/plants.py`` a
    quick scan shows 28 of 28 planted attributes with it beside logistic regression, and none of 30
    coins.
    """

    name = "norms"
    summary = "Forest of 50 trees on norms of the gradient and of 32 parts of it."
    size = f"{TREES} trees of norms"

    def reads(self, gradients: Features) -> Features:
        """Returns the gradients' norms, (rows, 5 + blocks), in single precision."""
        return norms(gradients).astype(np.float32)


def norms(gradients: Features) -> FloatArray:
    """Returns logarithms of gradients' norms, (rows, elements) to (rows, 5 + blocks).

    The first is ln‖g‖₂; the others do not change with it: ln‖g‖₁, ln‖g‖₄ and ln‖g‖_∞ less
    ln‖g‖₂, the share of elements that are zero, and ln‖g_b‖₂ less ln‖g‖₂ of each block g_b of
    neighbouring elements. A norm of zero counts as the smallest number above zero.
    """
    rows, width = gradients.shape
    step = max(1, _IN_CACHE // max(width, 1))
    parts = [_norms(gradients[start : start + step]) for start in range(0, rows, step)]
    return np.concatenate(parts)


def _norms(gradients: Features) -> FloatArray:
    width = gradients.shape[1]
    tiny = float(np.finfo(gradients.dtype).tiny)
    sizes = np.abs(gradients)
    largest = np.maximum(sizes.max(axis=1, keepdims=True, initial=0), tiny)
    sizes /= largest
    squares = sizes**2
    starts = np.linspace(0, width, min(BLOCKS, width), endpoint=False).astype(np.int64)
    blocks = np.add.reduceat(squares, starts, axis=1).astype(np.float64)
    length = np.log(blocks.sum(axis=1, keepdims=True) + tiny) / 2
    relative = (
        np.log(sizes.sum(axis=1, keepdims=True).astype(np.float64) + tiny),
        np.log(np.einsum("ij,ij->i", squares, squares)[:, None] + tiny) / 4,
        np.zeros_like(length),
        np.log(blocks + tiny) / 2,
    )
    zero = np.zeros_like(length)
    if not sizes.min(initial=1):
        zero = 1 - np.count_nonzero(sizes, axis=1, keepdims=True) / width
    return np.hstack([length + np.log(largest), *(each - length for each in relative), zero])


@dataclass(frozen=True)
class PaperForest(Fitted):
    """The softmax of a forest's votes (Mo et al. 2021, eq. 8).

    Votes lie in [0, 1], so no probability exceeds e/(e + m − 1) among m values, and the information
    never exceeds ``ceiling(m)``, whatever the forest knows.
    """

    forest: FittedForest

    @property
    def prior(self) -> FloatArray:  # type: ignore[override]
        """The prior of the forest."""
        return self.forest.prior

    def log_probabilities(self, features: Features) -> FloatArray:
        """Votes less their log-sum-exp, (rows, classes)."""
        return normalised(self.forest.votes(features))


def ceiling(values: int) -> float:
    """Returns the most nats that the softmax of votes can show of a uniform value: 0.38 of two."""
    return float(np.log(values) - np.log1p((values - 1) / np.e))
