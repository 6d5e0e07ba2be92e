"""Calibration: one temperature, found on batches of records that a member was not fitted on."""

from dataclasses import dataclass

import numpy as np

from gradaudit.families.base import Features, Fitted, FloatArray, IntArray, normalised

_HALVINGS = 60
_SHARPEST = 20.0
_CHANCE = 2.0


@dataclass(frozen=True)
class Tempered(Fitted):
    """A member whose evidence against its prior is multiplied, and which doubts itself.

    Attributes:
        inner: the member.
        sharpness: the factor t; at 0 it is the prior, so that a tempered family can ignore what it
            sees.
        doubt: the share λ of the prior in what it says: (1 − λ)·p + λ·π.
    """

    inner: Fitted
    sharpness: float
    doubt: float = 0.0

    @property
    def prior(self) -> FloatArray:  # type: ignore[override]
        """The inner member's."""
        return self.inner.prior

    def log_probabilities(self, features: Features) -> FloatArray:
        """(rows, classes), finite."""
        prior = np.log(self.prior)
        evidence = self.inner.log_probabilities(features) - prior
        sharp = normalised(self.sharpness * evidence + prior)
        if not self.doubt:
            return sharp
        doubting = np.logaddexp(np.log1p(-self.doubt) + sharp, np.log(self.doubt) + prior)
        return np.asarray(doubting)


def temper(
    fitted: Fitted,
    features: Features,
    labels: IntArray,
    weights: FloatArray | None = None,
    independent: float | None = None,
) -> Tempered:
    """Calibrate a member on rows (rows, features) of other records than those it was fitted on.

    Shadow batches share records, so a member is surer of itself than it should be, and its own
    out-of-bag rows do not show it. The sharpness t that minimises the log loss gains G nats a row
    over the prior. By chance alone, one parameter gains 1/(2n) on n independent rows and loses as
    much on others, so t is shrunk by 1 − c/(2nG), to 0 where that is negative (James and Stein's
    estimator, with the information t²I/2 ≈ G; c = 2 as the best of some members is taken). And n
    rows without an error do not show an error rate below about λ = 1/(2(n + 1)) (Jeffreys): that
    much doubt is mixed in, so one sure mistake costs no more than ln(1/(λπ)).
    Source: C. Guo et al., "On calibration of modern neural networks" (2017), with the prior
    instead of the uniform distribution as the limit.

    Args:
        fitted: the member.
        features: (rows, features).
        labels: (rows,).
        weights: (rows,), all alike without it.
        independent: n, how many of the rows are independent; without it, all of them.
    """
    prior = np.log(fitted.prior)
    evidence = fitted.log_probabilities(features) - prior
    sharpness = best_sharpness(evidence, prior, labels, weights)
    weigh = np.ones(len(labels)) if weights is None else weights / weights.mean()
    rows = np.arange(len(labels))
    gained = normalised(sharpness * evidence + prior)[rows, labels] - prior[labels]
    gain = float((weigh * gained).mean())
    count = independent or len(labels)
    if gain <= _CHANCE / (2 * count):
        return Tempered(fitted, 0.0)
    shrunk = sharpness * (1 - _CHANCE / (2 * count * gain))
    return Tempered(fitted, shrunk, 1 / (2 * (count + 1)))


def best_sharpness(
    evidence: FloatArray, prior: FloatArray, labels: IntArray, weights: FloatArray | None = None
) -> float:
    """The factor on evidence (rows, classes) that minimises the labels' log loss, in [0, 20].

    Args:
        evidence: log-probabilities less the prior's.
        prior: (classes,) its logarithm.
        labels: (rows,).
        weights: (rows,), all alike without it.
    """
    own = evidence[np.arange(len(labels)), labels]
    weigh = np.ones(len(labels)) if weights is None else weights

    def slope(sharpness: float) -> float:
        expected = np.exp(normalised(sharpness * evidence + prior)) * evidence
        return float(weigh @ (expected.sum(axis=1) - own))

    if slope(0.0) >= 0:
        return 0.0
    low, high = 0.0, _SHARPEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return low
