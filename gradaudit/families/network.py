"""A small neural network on projected features."""

import warnings
from collections.abc import Callable

import numpy as np

from gradaudit.families.base import FloatArray, Projection, Training
from gradaudit.families.projected import ProjectedFamily


class Mlp(ProjectedFamily):
    """One hidden layer of 32 units on the 50 directions in which the fit rows spread most.

    Mo et al. (2021, section 6.2) and Mo et al. (2022, III-C) have networks in their families; this
    one is small enough to be fitted hundreds of times.
    """

    name = "mlp"
    summary = "Network of one hidden layer on 50 principal components."
    size = "32 hidden units"

    def _scores(
        self, rows: FloatArray, training: Training, generator: np.random.Generator
    ) -> Callable[[FloatArray], FloatArray]:
        """Scores without the softmax, which saturates; fitted by L-BFGS from a seeded start."""
        from sklearn import exceptions, neural_network  # a second that estimates need not wait

        widest = rows[:, :50]
        spread = float(np.sqrt((widest**2).mean()))
        network = neural_network.MLPClassifier(
            (32,),
            activation="tanh",
            solver="lbfgs",
            alpha=1.0,
            max_iter=60,
            random_state=int(generator.integers(2**31)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
            network.fit(widest / spread, training.labels, sample_weight=training.weights)
        (first, second), (hidden_bias, bias) = network.coefs_, network.intercepts_
        return lambda projected: np.asarray(
            np.tanh(projected[:, :50] / spread @ first + hidden_bias) @ second + bias
        )

    def seconds(self, rows: int, features: int) -> float:
        """Estimates the seconds: the projection's, and a bounded number of steps."""
        return 0.05 + 2e-4 * rows + Projection.seconds(rows, features)
