"""Classification of ordered values, from classifiers of "more than i" (Frank and Hall 2001).

Source: E. Frank and M. Hall, "A simple approach to ordinal classification" (2001), as Z. Li et al.,
"Analyzing inference privacy risks through gradients in machine learning" (2024), section 4.1, use
it on ratio bins. The differences P(a > i − 1) − P(a > i) are negative where the classifiers
disagree; they are clipped at zero and every value keeps a small share, so that each row is a
distribution with finite logarithms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradaudit.families import Family, Fitted, under_prior
from gradaudit.families.base import Features, FloatArray, Training

_SHARE = 1e-3
"""What is spread evenly over all values, so that none is impossible."""


@dataclass(frozen=True)
class FittedOrdinal(Fitted):
    """Fitted classifiers of "more than i", i = 0 … values − 2."""

    prior: FloatArray
    thresholds: Sequence[Fitted]

    def log_probabilities(self, features: Features) -> FloatArray:
        """Log-probabilities (rows, values), finite, each row a distribution."""
        above = np.stack([self._above(i, features) for i in range(len(self.thresholds))], axis=1)
        return from_thresholds(above)

    def _above(self, threshold: int, features: Features) -> FloatArray:
        """P(a > threshold), (rows,), under the prior of the values."""
        fitted = self.thresholds[threshold]
        more = self.prior[threshold + 1 :].sum()
        wanted = np.array([1 - more, more])
        answers = under_prior(fitted.log_probabilities(features), fitted.prior, wanted)
        return np.asarray(np.exp(answers[:, 1]))


@dataclass(frozen=True)
class Ordinal(Family):
    """One member of ``inner`` for each threshold between two neighbouring values."""

    inner: Family

    def _fit(self, training: Training, generator: np.random.Generator) -> FittedOrdinal:
        """Fit the thresholds' classifiers, each on all rows and with both sides weighed alike."""
        even = np.full(2, 0.5)
        seeds = generator.integers(1 << 62, size=len(training.prior) - 1)
        above = [(training.labels > i).astype(np.int64) for i in range(len(seeds))]
        thresholds = [
            self.inner.fit(training.features, more, 2, int(seed), prior=even)
            for more, seed in zip(above, seeds, strict=True)
        ]
        return FittedOrdinal(training.prior, thresholds)


def from_thresholds(above: FloatArray) -> FloatArray:
    """Log-probabilities of values from P(a > i): (rows, values − 1) to (rows, values).

    Raises:
        ValueError: there is no threshold.
    """
    if above.ndim != 2 or not above.shape[1]:
        raise ValueError("ordered values need at least one threshold")
    edges = np.pad(above, ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0)))
    differences = np.clip(edges[:, :-1] - edges[:, 1:], 0, None)
    shares = differences / differences.sum(axis=1, keepdims=True)
    return np.asarray(np.log((1 - _SHARE) * shares + _SHARE / shares.shape[1]))
