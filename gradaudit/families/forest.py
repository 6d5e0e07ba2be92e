"""A random forest whose votes are smoothed into probabilities."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gradaudit.families.base import (
    Family,
    Features,
    Fitted,
    FloatArray,
    IntArray,
    Seed,
    training_weights,
)
from gradaudit.families.standard import Scale

TREES = 50
_PSEUDO_VOTES = 1.0
"""Votes spread over the classes by the prior, beside the trees' own (Laplace for two classes)."""


@dataclass(frozen=True)
class FittedForest(Fitted):
    """A fitted forest."""

    prior: FloatArray
    scale: Scale
    trees: Any

    def votes(self, features: Features) -> FloatArray:
        """Share of the trees that vote for each class, (rows, classes)."""
        if self.trees is None:
            return np.tile(self.prior, (len(features), 1))
        return np.asarray(self.trees.predict_proba(self.scale(features)), dtype=np.float64)

    def log_probabilities(self, features: Features) -> FloatArray:
        """Logs of the votes with a pseudo-vote a class, so none is infinite."""
        extra = _PSEUDO_VOTES * len(self.prior)
        smoothed = (TREES * self.votes(features) + extra * self.prior) / (TREES + extra)
        return np.asarray(np.log(smoothed))


class Forest(Family):
    """Fifty fully grown trees (Mo et al. 2021, section 4.2; Li et al. 2024, 5.1.3).

    A class's probability is (votes + n·π)/(50 + n), with n classes and the training prior π:
    Laplace's rule where π is uniform. It is never 0, and at most 51/52 between two classes.
    Standardised features, since trees treat differences below 1e-7 as none.
    """

    name = "forest"
    summary = "Random forest of 50 trees, votes smoothed by Laplace's rule."

    def fit(
        self,
        features: Features,
        labels: IntArray,
        classes: int,
        seed: Seed,
        *,
        prior: FloatArray | None = None,
    ) -> FittedForest:
        """Grow the trees, one after the other: the same ones however many workers there are."""
        from sklearn.ensemble import RandomForestClassifier

        trained, weights = training_weights(features, labels, classes, prior)
        scale = Scale.of(features)
        if not scale.kept.any():
            return FittedForest(trained, scale, None)
        state = int(np.random.default_rng(seed).integers(2**31))
        trees = RandomForestClassifier(TREES, random_state=state, n_jobs=1)
        return FittedForest(trained, scale, trees.fit(scale(features), labels, weights))
