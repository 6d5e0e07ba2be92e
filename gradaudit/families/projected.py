"""Families of smooth predictors on projected features, and the prior, which uses none."""

import warnings
from abc import abstractmethod
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from gradaudit.families.base import (
    Family,
    Fitted,
    FittedPrior,
    FittedScores,
    FloatArray,
    Projection,
    Training,
    normalised,
    of_both,
)
from gradaudit.report import LINEAR

_LOSS = 10.0
"""Weight of a row's loss beside half the squared weights."""
_STEPS, _SLOPE = 200, 1e-2
"""Largest number of steps, and the largest derivative at which the fit stops."""


class Prior(Family):
    """The prior itself, for any features.

    With it a set of predictors may ignore what it sees (Mo et al. 2021, definition 1), so that no
    information is negative.
    """

    name = "prior"
    summary = "The prior itself, whatever the gradient."

    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
        return FittedPrior(training.prior)


class ProjectedFamily(Family):
    """Predictors on projected rows; the prior where there is nothing to project on."""

    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
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
        """Scores fitted by L-BFGS on columns of one curvature: about a step for each outlier."""
        known = np.eye(len(training.prior))[training.labels]
        losses = _LOSS * training.weights[:, None]
        columns = np.hstack([rows, np.ones((len(rows), 1))])
        penalty = np.r_[np.ones(rows.shape[1]), 0]
        unit = 1 / np.sqrt(penalty + (losses * columns**2).sum(axis=0) / 4)
        columns, penalty = columns * unit, penalty * unit**2
        sides = 1 if len(training.prior) == 2 else len(training.prior)

        def objective(flat: FloatArray) -> tuple[float, FloatArray]:
            weights = flat.reshape(sides, -1)
            posterior = normalised(of_both(columns @ weights.T))
            wrong = (losses * (np.exp(posterior) - known))[:, -sides:]
            value = (penalty * weights**2).sum() / 2 - (losses * known * posterior).sum()
            return float(value), np.asarray(wrong.T @ columns + penalty * weights).reshape(-1)

        found = minimize(
            objective,
            np.zeros(sides * len(unit)),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": _STEPS, "gtol": _SLOPE},
        )
        *weights, bias = (found.x.reshape(sides, -1) * unit).T
        return lambda projected: np.asarray(projected @ np.reshape(weights, (-1, sides)) + bias)

    def seconds(self, rows: int, features: int) -> float:
        """Estimates the seconds, mostly those of the projection."""
        return 0.005 + Projection.seconds(rows, features)


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


class Discriminant(ProjectedFamily):
    """Normal classes with one covariance, on standardised features.

    A class scores ⟨x, S⁻¹μ⟩ − ½⟨μ, S⁻¹μ⟩ + ln π; S is the pooled covariance with a tenth of its
    mean variance added to every direction, so that it has an inverse. Closed form, and by far the
    cheapest family: for simulations of what would take hours with forests.
    Source: R. A. Fisher, "The use of multiple measurements in taxonomic problems" (1936);
    J. H. Friedman, "Regularized discriminant analysis" (1989), eq. 18.
    """

    name = "discriminant"
    summary = "Fisher's linear discriminant, shrunk; the cheapest."
    size = LINEAR

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
        """Estimate the seconds of a fit, most of which the projection takes."""
        return 1e-3 + Projection.seconds(rows, features)
