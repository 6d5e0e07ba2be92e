"""Families of smooth predictors on projected features, and the one that looks at nothing."""

import warnings
from abc import abstractmethod
from collections.abc import Callable

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from gradaudit.families import base
from gradaudit.families.base import Family, Fitted, FloatArray, Projection, Training


class Prior(Family):
    """The prior itself, whatever the features are.

    With it a set of predictors may ignore what it sees (Mo et al. 2021, definition 1), so that no
    information is negative.
    """

    name = "prior"
    summary = "The prior itself, whatever the gradient."

    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
        return base.FittedPrior(training.prior)


class _Projected(Family):
    """Predictors that score the projected rows, the prior where there is nothing to project on."""

    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
        rows = training.projection(training.features)
        if not rows.shape[1]:
            return base.FittedPrior(training.prior)
        scores = self._scores(rows, training, generator)
        return base.FittedScores(training.prior, training.projection, scores)

    @abstractmethod
    def _scores(
        self, rows: FloatArray, training: Training, generator: np.random.Generator
    ) -> Callable[[FloatArray], FloatArray]:
        """Projected rows (rows, directions) to scores, as ``FittedScores`` takes them."""


class Logistic(_Projected):
    """Multinomial logistic regression on standardised features, with an L2 penalty.

    The penalty is that of features whose rows have length about one, so it holds as well for ten
    features as for ten thousand.

    Source: C. Bishop, "Pattern recognition and machine learning" (2006), section 4.3.4.
    """

    name = "logistic"
    summary = "Logistic regression on standardised features."

    def _scores(
        self, rows: FloatArray, training: Training, generator: np.random.Generator
    ) -> Callable[[FloatArray], FloatArray]:
        """By L-BFGS; sklearn's C is the inverse weight of ½‖w‖² beside the sum of losses."""
        regression = LogisticRegression(C=10.0, max_iter=200, tol=1e-4)
        regression.fit(rows, training.labels, training.weights)
        scores: Callable[[FloatArray], FloatArray] = regression.decision_function
        return scores

    def seconds(self, rows: int, features: int) -> float:
        """Mostly the projection's."""
        return 0.02 + Projection.seconds(rows, features)


class Discriminant(_Projected):
    """Normal classes with one covariance, on standardised features.

    A class scores ⟨x, S⁻¹μ⟩ − ½⟨μ, S⁻¹μ⟩ + ln π; S is the pooled covariance with a tenth of its
    mean variance added to every direction, so that it has an inverse. Closed form, and by far the
    cheapest family: for simulations of what would take hours with forests.
    Source: R. A. Fisher, "The use of multiple measurements in taxonomic problems" (1936);
    J. H. Friedman, "Regularized discriminant analysis" (1989), eq. 18.
    """

    name = "discriminant"
    summary = "Fisher's linear discriminant, shrunk; the cheapest."

    def _scores(
        self, rows: FloatArray, training: Training, generator: np.random.Generator
    ) -> Callable[[FloatArray], FloatArray]:
        members = np.eye(len(training.prior))[training.labels] * training.weights[:, None]
        means = members.T @ rows / members.sum(axis=0)[:, None]
        within = rows - means[training.labels]
        spread = (within * training.weights[:, None]).T @ within / len(rows)
        floor = 0.1 * np.trace(spread) / len(spread) + np.finfo(float).tiny
        directions = np.linalg.solve(spread + floor * np.eye(len(spread)), means.T)
        offsets = np.log(training.prior) - (means.T * directions).sum(axis=0) / 2
        return lambda projected: np.asarray(projected @ directions + offsets)

    def seconds(self, rows: int, features: int) -> float:
        """Mostly the projection's."""
        return 1e-3 + Projection.seconds(rows, features)


class Mlp(_Projected):
    """One hidden layer of 32 units on the 50 directions in which the fit rows spread most.

    Mo et al. (2021, section 6.2) and Mo et al. (2022, III-C) have networks in their families; this
    one is small enough to be fitted hundreds of times.
    """

    name = "mlp"
    summary = "Network of one hidden layer on 50 principal components."

    def _scores(
        self, rows: FloatArray, training: Training, generator: np.random.Generator
    ) -> Callable[[FloatArray], FloatArray]:
        """By L-BFGS from a seeded start; without its softmax, which saturates to zeros and ones."""
        widest = rows[:, :50]
        spread = float(np.sqrt((widest**2).mean()))
        network = MLPClassifier(
            (32,),
            activation="tanh",
            solver="lbfgs",
            alpha=1.0,
            max_iter=60,
            random_state=int(generator.integers(2**31)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(widest / spread, training.labels, sample_weight=training.weights)
        (first, second), (hidden_bias, bias) = network.coefs_, network.intercepts_
        return lambda projected: np.asarray(
            np.tanh(projected[:, :50] / spread @ first + hidden_bias) @ second + bias
        )

    def seconds(self, rows: int, features: int) -> float:
        """The projection's, and a bounded number of steps."""
        return 0.05 + 2e-4 * rows + Projection.seconds(rows, features)
