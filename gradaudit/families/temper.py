"""Calibration: one temperature, found on batches of records that a member was not fitted on."""

from dataclasses import dataclass

import numpy as np

from gradaudit.families.base import Features, Fitted, FloatArray, IntArray, normalised

_HALVINGS = 60
_SHARPEST = 20.0


@dataclass(frozen=True)
class Tempered(Fitted):
    """A member whose evidence against its prior is multiplied by ``sharpness``.

    At 0 it is the prior, so that a tempered family can ignore what it sees.
    """

    inner: Fitted
    sharpness: float

    @property
    def prior(self) -> FloatArray:  # type: ignore[override]
        """The inner member's."""
        return self.inner.prior

    def log_probabilities(self, features: Features) -> FloatArray:
        """(rows, classes), finite."""
        prior = np.log(self.prior)
        evidence = self.inner.log_probabilities(features) - prior
        return normalised(self.sharpness * evidence + prior)


def temper(fitted: Fitted, features: Features, labels: IntArray) -> Tempered:
    """Calibrate a member on rows (rows, features) of other records than those it was fitted on.

    Shadow batches share records, so a member is surer of itself than it should be, and its own
    out-of-bag rows do not show it. The sharpness minimises the log loss, which is convex in it, by
    bisection of its slope in [0, 20]. Source: C. Guo et al., "On calibration of modern neural
    networks" (2017), with the prior instead of the uniform distribution as the limit.
    """
    prior = np.log(fitted.prior)
    evidence = fitted.log_probabilities(features) - prior
    return Tempered(fitted, best_sharpness(evidence, prior, labels))


def best_sharpness(evidence: FloatArray, prior: FloatArray, labels: IntArray) -> float:
    """The factor on evidence (rows, classes) that minimises the labels' log loss, in [0, 20]."""
    own = evidence[np.arange(len(labels)), labels]

    def slope(sharpness: float) -> float:
        expected = np.exp(normalised(sharpness * evidence + prior)) * evidence
        return float((expected.sum(axis=1) - own).sum())

    if slope(0.0) >= 0:
        return 0.0
    low, high = 0.0, _SHARPEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return low
