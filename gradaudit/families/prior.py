"""The family that looks at nothing."""

import numpy as np

from gradaudit.families.base import Family, Fitted, FittedPrior, Training


class Prior(Family):
    """The prior itself, whatever the features are.

    With it a set of predictors may ignore what it sees (Mo et al. 2021, definition 1), so that no
    information is negative.
    """

    name = "prior"
    summary = "The prior itself, whatever the gradient."

    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
        return FittedPrior(training.prior)
