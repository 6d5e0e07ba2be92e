"""The family that looks at nothing."""

from dataclasses import dataclass

import numpy as np

from gradaudit.families.base import (
    Family,
    Features,
    Fitted,
    FloatArray,
    IntArray,
    Seed,
    training_weights,
)


@dataclass(frozen=True)
class FittedPrior(Fitted):
    """Says the prior of every row."""

    prior: FloatArray

    def log_probabilities(self, features: Features) -> FloatArray:
        """The prior's logs, (rows, classes)."""
        return np.tile(np.log(self.prior), (len(features), 1))


class Prior(Family):
    """The prior itself, whatever the features are.

    With it a set of predictors may ignore what it sees (Mo et al. 2021, definition 1), so that no
    information is negative.
    """

    name = "prior"
    summary = "The prior itself, whatever the gradient."

    def fit(
        self,
        features: Features,
        labels: IntArray,
        classes: int,
        seed: Seed,
        *,
        prior: FloatArray | None = None,
    ) -> FittedPrior:
        """The prior, as given or as frequencies of the labels."""
        return FittedPrior(training_weights(features, labels, classes, prior)[0])
