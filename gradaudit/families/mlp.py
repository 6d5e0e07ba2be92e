"""A small neural network."""

import warnings
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

_DIRECTIONS = 50
_HIDDEN = 32
_ITERATIONS = 60
_PENALTY = 1.0


@dataclass(frozen=True)
class FittedMlp(Fitted):
    """A fitted network on projected features."""

    prior: FloatArray
    projection: Projection
    spread: float
    network: Any

    def log_probabilities(self, features: Features) -> FloatArray:
        """Logs of the network's softmax, (rows, classes)."""
        if self.network is None:
            return np.tile(np.log(self.prior), (len(features), 1))
        return normalised(_scores(self.network, self.projection(features) / self.spread))


class Mlp(Family):
    """One hidden layer of 32 units on the 50 directions in which the fit rows spread most.

    Mo et al. (2021, section 6.2) and Mo et al. (2022, III-C) have networks in their families; this
    one is small enough to be fitted hundreds of times.
    """

    name = "mlp"
    summary = "Network of one hidden layer on 50 principal components."

    def fit(
        self,
        features: Features,
        labels: IntArray,
        classes: int,
        seed: Seed,
        *,
        prior: FloatArray | None = None,
    ) -> FittedMlp:
        """Fit by a bounded number of L-BFGS steps from a seeded start."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier

        trained, weights = training_weights(features, labels, classes, prior)
        projection = Projection.of(features, _DIRECTIONS)
        rows = projection(features)
        if not rows.shape[1] or classes == 1:
            return FittedMlp(trained, projection, 1.0, None)
        spread = float(np.sqrt((rows**2).mean()))
        state = int(np.random.default_rng(seed).integers(2**31))
        network = MLPClassifier(
            (_HIDDEN,),
            activation="tanh",
            solver="lbfgs",
            alpha=_PENALTY,
            max_iter=_ITERATIONS,
            random_state=state,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(rows / spread, labels, sample_weight=weights)
        return FittedMlp(trained, projection, spread, network)

    def seconds(self, rows: int, features: int) -> float:
        """The projection's, and a bounded number of steps."""
        return 0.05 + 2e-4 * rows + Projection.seconds(rows, features)


def _scores(network: Any, rows: FloatArray) -> FloatArray:
    """The output layer before its softmax (rows, classes), which saturates to zeros and ones."""
    hidden = np.tanh(rows @ network.coefs_[0] + network.intercepts_[0])
    outputs = hidden @ network.coefs_[1] + network.intercepts_[1]
    return np.hstack([0 * outputs, outputs]) if outputs.shape[1] == 1 else outputs
