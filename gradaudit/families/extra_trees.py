"""Extremely randomised trees."""

import numpy as np

from gradaudit.families.base import (
    Family,
    Features,
    FloatArray,
    IntArray,
    Seed,
    training_weights,
)
from gradaudit.families.forest import TREES, FittedForest
from gradaudit.families.standard import Scale


class ExtraTrees(Family):
    """Fifty trees with random thresholds, of all rows each; votes smoothed as a forest's.

    Source: P. Geurts et al., "Extremely randomized trees" (2006).
    """

    name = "extra-trees"
    summary = "50 trees with random thresholds, votes smoothed by Laplace's rule."

    def fit(
        self,
        features: Features,
        labels: IntArray,
        classes: int,
        seed: Seed,
        *,
        prior: FloatArray | None = None,
    ) -> FittedForest:
        """Grow the trees, one after the other."""
        from sklearn.ensemble import ExtraTreesClassifier

        trained, weights = training_weights(features, labels, classes, prior)
        scale = Scale.of(features)
        if not scale.kept.any():
            return FittedForest(trained, scale, None)
        state = int(np.random.default_rng(seed).integers(2**31))
        trees = ExtraTreesClassifier(TREES, random_state=state, n_jobs=1)
        return FittedForest(trained, scale, trees.fit(scale(features), labels, weights))
