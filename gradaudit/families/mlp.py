"""A small neural network."""

import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from gradaudit.families.base import Family, Fitted, FittedPrior, FittedScores, FloatArray, Training
from gradaudit.families.standard import Projection

_DIRECTIONS = 50
_HIDDEN = 32
_ITERATIONS = 60
_PENALTY = 1.0


class Mlp(Family):
    """One hidden layer of 32 units on the 50 directions in which the fit rows spread most.

    Mo et al. (2021, section 6.2) and Mo et al. (2022, III-C) have networks in their families; this
    one is small enough to be fitted hundreds of times.
    """

    name = "mlp"
    summary = "Network of one hidden layer on 50 principal components."

    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
        """By a bounded number of L-BFGS steps from a seeded start."""
        projection = training.projection
        rows = projection(training.features)[:, :_DIRECTIONS]
        if not rows.shape[1]:
            return FittedPrior(training.prior)
        spread = float(np.sqrt((rows**2).mean()))
        network = MLPClassifier(
            (_HIDDEN,),
            activation="tanh",
            solver="lbfgs",
            alpha=_PENALTY,
            max_iter=_ITERATIONS,
            random_state=int(generator.integers(2**31)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(rows / spread, training.labels, sample_weight=training.weights)
        return FittedScores(training.prior, projection, partial(_scores, network, spread))

    def seconds(self, rows: int, features: int) -> float:
        """The projection's, and a bounded number of steps."""
        return 0.05 + 2e-4 * rows + Projection.seconds(rows, features)


def _scores(network: Any, spread: float, rows: FloatArray) -> FloatArray:
    """The output layer before its softmax (rows, outputs), which saturates to zeros and ones."""
    hidden = np.tanh(rows[:, :_DIRECTIONS] / spread @ network.coefs_[0] + network.intercepts_[0])
    return np.asarray(hidden @ network.coefs_[1] + network.intercepts_[1])
