"""Logistic regression."""

import numpy as np
from sklearn.linear_model import LogisticRegression

from gradaudit.families.base import Family, Fitted, FittedPrior, FittedScores, Training
from gradaudit.families.standard import Projection

_PENALTY = 10.0
"""sklearn's C: the inverse weight of ½‖w‖² beside the sum of losses, for features of length 1."""
_ITERATIONS = 200


class Logistic(Family):
    """Multinomial logistic regression on standardised features, with an L2 penalty.

    The penalty is that of features whose rows have length about one, so it holds as well for ten
    features as for ten thousand.

    Source: C. Bishop, "Pattern recognition and machine learning" (2006), section 4.3.4.
    """

    name = "logistic"
    summary = "Logistic regression on standardised features."

    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
        """By L-BFGS; nothing is random."""
        projection = training.projection
        rows = projection(training.features)
        if not rows.shape[1]:
            return FittedPrior(training.prior)
        regression = LogisticRegression(C=_PENALTY, max_iter=_ITERATIONS, tol=1e-4)
        regression.fit(rows, training.labels, training.weights)
        return FittedScores(training.prior, projection, regression.decision_function)

    def seconds(self, rows: int, features: int) -> float:
        """Mostly the projection's."""
        return 0.02 + Projection.seconds(rows, features)
