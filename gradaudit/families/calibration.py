"""Calibration: scales a family's evidence by how well it predicts new records."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from gradaudit.families.base import FloatArray, IntArray, normalised

_SHARPEST = 20.0


@dataclass(frozen=True)
class Calibration:
    """Maps log-probabilities to calibrated ones: the evidence is multiplied, and mixed with doubt.

    Attributes:
        prior: (classes,) that the evidence is against.
        sharpness: the factor t on it; at 0 all that is left is the prior, so that a calibrated
            family can ignore what it sees.
        doubt: the share λ of the prior in what is said: (1 − λ)·p + λ·π.
    """

    prior: FloatArray
    sharpness: float
    doubt: float = 0.0

    def __call__(self, log_probabilities: FloatArray) -> FloatArray:
        """Calibrate probabilities (rows, classes): the same shape, and finite."""
        prior = np.log(self.prior)
        sharp = normalised(self.sharpness * (log_probabilities - prior) + prior)
        if not self.doubt:
            return sharp
        doubting = np.logaddexp(np.log1p(-self.doubt) + sharp, np.log(self.doubt) + prior)
        return np.asarray(doubting)


def calibration(
    log_probabilities: FloatArray,
    labels: IntArray,
    prior: FloatArray,
    weights: FloatArray | float = 1.0,
    independent: float | None = None,
) -> Calibration:
    """Calibrates a family by its predictions for records that it was not fitted on.

    Shadow batches share records, so a member is surer of itself than it should be, and its own
    out-of-bag rows do not show it. The sharpness t that minimises the log loss gains G nats a row
    over the prior. By chance alone, one parameter gains 1/(2n) on n independent rows and loses as
    much on others, so t is shrunk by G/(G + 1/(2n)): the posterior mean where t is as likely to be
    so far from 0 as found, with the information t²I/2 ≈ G. It is 0 only where the family ranks
    worse than chance: what ranks is never thrown away for being too sure. (Setting t to 0 where
    G < 1/n instead left .01 of .14 nats with 24 users and batches of 16.) And n rows without an
    error do not show an error rate below about λ = 1/(2(n + 1)) (Jeffreys): that much doubt is
    mixed in, so one sure mistake costs no more than ln(1/(λπ)).
    Source: C. Guo et al., "On calibration of modern neural networks" (2017), with the prior
    instead of the uniform distribution as the limit.

    Args:
        log_probabilities: (rows, classes), under ``prior``.
        labels: (rows,).
        prior: (classes,).
        weights: (rows,) of mean one, all alike without it.
        independent: n, how many of the rows are independent; without it, all of them.
    """
    known = np.log(prior)
    evidence = log_probabilities - known
    sharpness = best_sharpness(evidence, known, labels, weights)
    rows = np.arange(len(labels))
    gained = normalised(sharpness * evidence + known)[rows, labels] - known[labels]
    gain = float((weights * gained).mean())
    count = independent or len(labels)
    if gain <= 0:
        return Calibration(prior, 0.0)
    shrunk = sharpness * gain / (gain + 1 / (2 * count))
    return Calibration(prior, shrunk, 1 / (2 * (count + 1)))


def best_sharpness(
    evidence: FloatArray, prior: FloatArray, labels: IntArray, weights: FloatArray | float = 1.0
) -> float:
    """The factor on evidence (rows, classes) that minimises the labels' log loss, in [0, 20].

    Args:
        evidence: log-probabilities less the prior's.
        prior: (classes,) its logarithm.
        labels: (rows,).
        weights: (rows,), all alike without it.
    """
    of_labels = evidence[np.arange(len(labels)), labels]

    def slope(sharpness: float) -> float:
        expected = np.exp(normalised(sharpness * evidence + prior)) * evidence
        return float((weights * (expected.sum(axis=1) - of_labels)).sum())

    if slope(0.0) >= 0:
        return 0.0
    if slope(_SHARPEST) <= 0:
        return _SHARPEST
    return float(brentq(slope, 0.0, _SHARPEST, xtol=1e-9))
