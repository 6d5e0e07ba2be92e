"""Families of smooth predictors on projected features, and the prior, which uses none."""

import warnings
from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from gradaudit.families.base import (
    Family,
    Fitted,
    FittedPrior,
    FittedScores,
    FloatArray,
    Training,
)
from gradaudit.report import LINEAR

_LOSS = 10.0
"""Weight of a row's loss beside half the squared weights."""
_STEPS, _TOLERANCE = 200, 1e-5
"""Largest number of steps, and the largest derivative of the mean loss at which the fit stops."""
_SHRUNK = 0.1


class Prior(Family):
    """The prior itself, for any features.

    With it a set of predictors may ignore what it sees (Mo et al. 2021, definition 1), so that no
    information is negative.
    """

    name = "prior"
    summary = "The prior itself, whatever the gradient."

    def train(self, training: Training, generator: np.random.Generator) -> Fitted:
        """Fit the prior."""
        return FittedPrior(training.prior)


class ProjectedFamily(Family):
    """Predictors on projected rows; the prior where there is nothing to project on."""

    def train(self, training: Training, generator: np.random.Generator) -> Fitted:
        """Fit on projected rows; the prior where no feature varies."""
        projection = training.rows.projection
        rows = projection(training.rows.features)
        if not rows.shape[1]:
            return FittedPrior(training.prior)
        return FittedScores(training.prior, projection, self._scores(rows, training, generator))

    @abstractmethod
    def _scores(
        self, rows: FloatArray, training: Training, generator: np.random.Generator
    ) -> Callable[[FloatArray], FloatArray]:
        """Projected rows (rows, directions) to scores, as ``FittedScores`` takes them."""


class Logistic(ProjectedFamily):
    """Multinomial logistic regression on standardised features, with an L2 penalty.

    It minimises ½‖w‖² + 10 Σ losses; the intercepts are free. The penalty is that of features whose
    rows have length about one, so it holds as well for ten features as for ten thousand.

    Source: C. Bishop, "Pattern recognition and machine learning" (2006), section 4.3.4.
    """

    name = "logistic"
    summary = "Logistic regression on standardised features."
    size = LINEAR

    def _scores(
        self, rows: FloatArray, training: Training, generator: np.random.Generator
    ) -> Callable[[FloatArray], FloatArray]:
        from sklearn.linear_model import LogisticRegression  # a second that forests need not wait

        # Newton's steps are not slowed down by outliers, but grow with the cube of the classes
        solver = "newton-cholesky" if len(training.prior) == 2 else "lbfgs"
        member = LogisticRegression(C=_LOSS, solver=solver, tol=_TOLERANCE, max_iter=_STEPS)
        member.fit(rows, training.labels, sample_weight=training.weights)
        return lambda projected: np.asarray(member.decision_function(projected))


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


class Discriminant(ProjectedFamily):
    """Normal classes with one covariance, on standardised features.

    The pooled covariance is shrunk by a tenth towards its mean variance in every direction, so that
    it has an inverse. Closed form, and by far the cheapest family: for simulations of what would
    take hours with forests.
    Source: R. A. Fisher, "The use of multiple measurements in taxonomic problems" (1936);
    J. H. Friedman, "Regularized discriminant analysis" (1989), eq. 18.
    """

    name = "discriminant"
    summary = "Fisher's linear discriminant, shrunk; the cheapest."
    size = LINEAR

    def _scores(
        self, rows: FloatArray, training: Training, generator: np.random.Generator
    ) -> Callable[[FloatArray], FloatArray]:
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        member = LinearDiscriminantAnalysis(
            solver="lsqr", shrinkage=_SHRUNK, priors=training.prior
        ).fit(rows, training.labels)
        return lambda projected: np.asarray(member.decision_function(projected))
