"""Members that score classes: what they say is the softmax of their scores."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradaudit.families.base import Features, Fitted, FloatArray, normalised
from gradaudit.families.standard import Projection


@dataclass(frozen=True)
class FittedScores(Fitted):
    """Scores of projected rows.

    Attributes:
        scores: projected rows (rows, directions) to scores (rows, classes); of two classes, the
            second's alone, (rows,) or (rows, 1), is enough.
    """

    prior: FloatArray
    projection: Projection
    scores: Callable[[FloatArray], FloatArray]

    def log_probabilities(self, features: Features) -> FloatArray:
        """Logs of the softmax, (rows, classes)."""
        found = np.asarray(self.scores(self.projection(features)))
        found = found.reshape(len(found), -1)
        return normalised(np.hstack([0 * found, found]) if found.shape[1] == 1 else found)
