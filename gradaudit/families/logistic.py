"""Logistic regression."""

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
    normalised,
    training_weights,
)
from gradaudit.families.standard import Projection

_PENALTY = 10.0
"""sklearn's C: the inverse weight of ½‖w‖² beside the sum of losses, for features of length 1."""
_ITERATIONS = 200


@dataclass(frozen=True)
class FittedLogistic(Fitted):
    """Weights on projected features."""

    prior: FloatArray
    projection: Projection
    regression: Any

    def log_probabilities(self, features: Features) -> FloatArray:
        """Logs of the softmax of linear scores, (rows, classes)."""
        if self.regression is None:
            return np.tile(np.log(self.prior), (len(features), 1))
        scores = np.asarray(self.regression.decision_function(self.projection(features)))
        return normalised(scores if scores.ndim == 2 else np.stack([0 * scores, scores], axis=1))


class Logistic(Family):
    """Multinomial logistic regression on standardised features, with an L2 penalty.

    The penalty is that of features whose rows have length about one, so it holds as well for ten
    features as for ten thousand.
    """

    name = "logistic"
    summary = "Logistic regression on standardised features."

    def fit(
        self,
        features: Features,
        labels: IntArray,
        classes: int,
        seed: Seed,
        *,
        prior: FloatArray | None = None,
    ) -> FittedLogistic:
        """Fit by L-BFGS; nothing is random."""
        from sklearn.linear_model import LogisticRegression

        trained, weights = training_weights(features, labels, classes, prior)
        projection = Projection.of(features)
        rows = projection(features)
        if not rows.shape[1] or classes == 1:
            return FittedLogistic(trained, projection, None)
        regression = LogisticRegression(C=_PENALTY, max_iter=_ITERATIONS, tol=1e-4)
        return FittedLogistic(trained, projection, regression.fit(rows, labels, weights))

    def seconds(self, rows: int, features: int) -> float:
        """Mostly the projection's."""
        return 0.02 + Projection.seconds(rows, features)
