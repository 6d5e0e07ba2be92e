"""Several rounds' posteriors of one secret as one, by Bayes' rule.

Source: Li et al. 2024, equation 4, which subtracts (|R| − 1) log π: that is right only where every
round's classifier was trained under the prior π itself. A classifier trained on balanced batches
answers under π_train, which is what has to come off each round:

    log P(a|G) = Σ_r [log P_r(a|g_r) − log π_train(a)] + log π(a) + C.

The rounds see one batch through one model, so they are not independent given the secret: the sum
is right in which value it ranks first and too sure of it. ``Temperature`` makes it as sure as it
has been right before any log loss is taken of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from gradaudit.families import log_loss

Posteriors = NDArray[np.float64]
_HOTTEST = 8.0
"""Natural logarithm of the largest temperature that is looked at; the smallest is 0.

Below 1 a posterior would become surer than its rounds are: on held-out batches that happen to be
guessed without a fault no temperature is low enough, and the first fault elsewhere costs it all.
"""


def log_prior(probabilities: ArrayLike) -> Posteriors:
    """The logarithm of a prior, normalised over its last axis: (…, values).

    Raises:
        ValueError: it has no values, or one of them is not positive.
    """
    given = np.asarray(probabilities, dtype=np.float64)
    if not given.ndim or not given.size or not (np.isfinite(given) & (given > 0)).all():
        raise ValueError("a prior gives every value a probability above zero")
    return np.asarray(np.log(given / given.sum(axis=-1, keepdims=True)))


def combine(rounds: ArrayLike, trained_under: ArrayLike, prior: ArrayLike) -> Posteriors:
    """The posterior after all rounds.

    Args:
        rounds: (rounds, trials, values) log P_r(a|g_r), each up to a constant.
        trained_under: π_train, (values,), or whatever broadcasts to the shape of ``rounds``.
        prior: π of the secret that is guessed, (values,) or (trials, values).

    Returns:
        (trials, values) normalised log P(a|G).
    """
    evidence = _evidence(rounds, trained_under).sum(axis=0)
    return np.asarray(log_softmax(evidence + log_prior(prior), axis=1))


def pool(rounds: ArrayLike, trained_under: ArrayLike, prior: ArrayLike) -> Posteriors:
    """One posterior of rounds with the same side knowledge, by their mean evidence.

    The sum would count what they share once a round, and to take log P(a|φ) off all but one of
    them multiplies the error of its estimate; the mean (a logarithmic opinion pool) counts it once.

    Args:
        rounds: (rounds, trials, values) log P_r(a|g_r, φ), each up to a constant.
        trained_under: as in ``combine``.
        prior: as in ``combine``.

    Returns:
        (trials, values) normalised.
    """
    evidence = _evidence(rounds, trained_under).mean(axis=0)
    return np.asarray(log_softmax(evidence + log_prior(prior), axis=1))


def _evidence(rounds: ArrayLike, trained_under: ArrayLike) -> Posteriors:
    """Log P_r(a|g_r) − log π_train(a), (rounds, trials, values)."""
    answers = np.asarray(rounds, dtype=np.float64)
    return np.asarray(log_softmax(answers, axis=2) - log_prior(trained_under))


@dataclass(frozen=True)
class Temperature:
    """How far the evidence of a posterior can be trusted: 1 as it is, more for less.

    Attributes:
        value: what the log evidence is divided by.
        prior: π, (values,), which is not divided.
    """

    value: float
    prior: Posteriors

    @classmethod
    def fitted(
        cls, posterior: Posteriors, secrets: NDArray[np.int64], prior: ArrayLike
    ) -> Temperature:
        """The temperature of the least log loss on trials that are scored nowhere else.

        Args:
            posterior: (trials, values) normalised log P(a|G).
            secrets: (trials,) the true values.
            prior: π, (values,).
        """
        known = np.asarray(prior, dtype=np.float64)

        def loss(log_temperature: float) -> float:
            scaled = cls(float(np.exp(log_temperature)), known).applied(posterior)
            return log_loss(scaled, secrets)

        best = minimize_scalar(loss, bounds=(0.0, _HOTTEST), method="bounded")
        return cls(float(np.exp(best.x)), known)

    def applied(self, posterior: Posteriors) -> Posteriors:
        """(trials, values) recalibrated, normalised log P(a|G); the ranking stays."""
        base = log_prior(self.prior)
        return np.asarray(log_softmax((posterior - base) / self.value + base, axis=1))
