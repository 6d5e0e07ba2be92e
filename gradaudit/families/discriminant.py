"""Fisher's linear discriminant."""

from functools import partial

import numpy as np

from gradaudit.families.base import Family, Fitted, FittedPrior, FittedScores, FloatArray, Training
from gradaudit.families.standard import Projection

_SHRUNK = 0.1


class Discriminant(Family):
    """Normal classes with one covariance, on standardised features.

    A class scores ⟨x, S⁻¹μ⟩ − ½⟨μ, S⁻¹μ⟩ + ln π; S is the pooled covariance with a tenth of its
    mean variance added to every direction, so that it has an inverse. Closed form, and by far the
    cheapest family: for simulations of what would take hours with forests.
    Source: R. A. Fisher, "The use of multiple measurements in taxonomic problems" (1936);
    J. H. Friedman, "Regularized discriminant analysis" (1989), eq. 18.
    """

    name = "discriminant"
    summary = "Fisher's linear discriminant, shrunk; the cheapest."

    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
        """In closed form; nothing is random."""
        rows = training.projection(training.features)
        if not rows.shape[1]:
            return FittedPrior(training.prior)
        members = np.eye(len(training.prior))[training.labels] * training.weights[:, None]
        means = members.T @ rows / members.sum(axis=0)[:, None]
        within = rows - means[training.labels]
        spread = (within * training.weights[:, None]).T @ within / len(rows)
        floor = _SHRUNK * np.trace(spread) / len(spread) + np.finfo(float).tiny
        directions = np.linalg.solve(spread + floor * np.eye(len(spread)), means.T)
        offsets = np.log(training.prior) - (means.T * directions).sum(axis=0) / 2
        scores = partial(_scores, directions, offsets)
        return FittedScores(training.prior, training.projection, scores)

    def seconds(self, rows: int, features: int) -> float:
        """Mostly the projection's."""
        return 1e-3 + Projection.seconds(rows, features)


def _scores(directions: FloatArray, offsets: FloatArray, rows: FloatArray) -> FloatArray:
    return np.asarray(rows @ directions + offsets)
