"""Mo et al.'s reading of a forest, for comparison with their figures."""

from dataclasses import dataclass

import numpy as np

from gradaudit.families.base import Features, Fitted, FloatArray, normalised
from gradaudit.families.forest import FittedForest


@dataclass(frozen=True)
class PaperForest(Fitted):
    """The softmax of a forest's votes (Mo et al. 2021, eq. 8).

    Votes lie in [0, 1], so no probability exceeds e/(e + m − 1) among m values, and the information
    never exceeds ``ceiling(m)``, whatever the forest knows.
    """

    forest: FittedForest

    @property
    def prior(self) -> FloatArray:  # type: ignore[override]
        """The forest's."""
        return self.forest.prior

    def log_probabilities(self, features: Features) -> FloatArray:
        """Votes less their log-sum-exp, (rows, classes)."""
        return normalised(self.forest.votes(features))


def ceiling(values: int) -> float:
    """The most nats that the softmax of votes can show of a uniform value: 0.38 of two."""
    return float(np.log(values) - np.log1p((values - 1) / np.e))
