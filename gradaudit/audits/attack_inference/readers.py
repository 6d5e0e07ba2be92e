"""Posteriors of several classifiers of one update: calibrated, and pooled into one answer.

Several rounds' posteriors of one secret become one by Bayes' rule. Source: Li et al. 2024, equation
4, which subtracts (|R| − 1) log π: that is right only where every round's classifier was trained
under the prior π itself. Ours are trained on balanced batches, so that what they say is evidence:

    log P(a|G) = Σ_r log P_r(a|g_r) + log π(a) + C.

The rounds see one batch through one model, so they are not independent given the secret: the sum
is right in which value it ranks first and too sure of it. ``Temperature`` makes it as sure as it
has been right before any log loss is taken of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp, softmax

from gradaudit.audits.attack_inference.split import FloatArray, GameSplit, IntArray
from gradaudit.families import log_loss

_HOTTEST = 8.0
"""Natural logarithm of the largest temperature that is looked at; the smallest is 0.

Below 1 a posterior would become surer than its rounds are: on held-out batches that happen to be
guessed without a fault no temperature is low enough, and the first fault elsewhere costs it all.
"""
_LEAST_SHARE = 0.001
"""A reader with a smaller share of the answer is left out."""


def log_prior(probabilities: ArrayLike) -> FloatArray:
    """Compute the logarithm of a prior, normalised over its last axis: (…, values).

    Raises:
        ValueError: it has no values, or one of them is not positive.
    """
    given = np.asarray(probabilities, dtype=np.float64)
    if not given.ndim or not given.size or not (np.isfinite(given) & (given > 0)).all():
        raise ValueError("a prior gives every value a probability above zero")
    return np.asarray(np.log(given / given.sum(axis=-1, keepdims=True)))


def combine(rounds: ArrayLike, prior: ArrayLike, *, shared: bool = False) -> FloatArray:
    """Combine the posteriors of several rounds into the posterior after all of them.

    Where the rounds share side knowledge φ, their sum would count it once a round, and to take
    log P(a|φ) off all but one of them multiplies the error of its estimate; their mean (a
    logarithmic opinion pool) counts it once.

    Args:
        rounds: (rounds, trials, values) log P_r(a|g_r) or log P_r(a|g_r, φ) by classifiers that
            were trained on balanced batches, each up to a constant.
        prior: π of the secret that is guessed, (values,) or (trials, values).
        shared: whether the rounds share side knowledge.

    Returns:
        (trials, values) normalised log P(a|G).
    """
    evidence = log_softmax(np.asarray(rounds, dtype=np.float64), axis=2)
    together = evidence.mean(axis=0) if shared else evidence.sum(axis=0)
    return np.asarray(log_softmax(together + log_prior(prior), axis=1))


@dataclass(frozen=True)
class Temperature:
    """How far the evidence of a posterior can be trusted: 1 as it is, more for less.

    Attributes:
        value: what the log evidence is divided by.
        prior: π, (values,), which is not divided.
    """

    value: float
    prior: FloatArray

    @classmethod
    def fitted(cls, posterior: FloatArray, secrets: IntArray, prior: ArrayLike) -> Temperature:
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

    def applied(self, posterior: FloatArray) -> FloatArray:
        """Recalibrate log P(a|G) (trials, values); the ranking of values does not change."""
        base = log_prior(self.prior)
        return np.asarray(log_softmax((posterior - base) / self.value + base, axis=1))


@dataclass(frozen=True)
class Guesses:
    """One adversary's posteriors of the batches to guess.

    Attributes:
        posterior: (trials, values) normalised log P(a|G) of all rounds together.
        rounds: the same of each round alone.
        held: (held batches, values) the same of the batches held out, under an even prior.
        temperature: what calibrates ``posterior``; None where no batches were held out.
        families: the predictive families that the answer rests on.
        held_out_loss: in nats, of batches held out, after calibration; infinite without any.
        reads: the layers that it reads, or ``ALL_LAYERS``, each with its share of the answer.
    """

    posterior: FloatArray
    rounds: tuple[FloatArray, ...]
    held: FloatArray
    temperature: Temperature | None
    families: tuple[str, ...]
    held_out_loss: float
    reads: Mapping[str, float]


def calibrated(
    posterior: FloatArray,
    rounds: tuple[FloatArray, ...],
    held: FloatArray,
    split: GameSplit,
    families: tuple[str, ...],
    reads: Mapping[str, float],
) -> Guesses:
    """Guesses with the temperature that minimises the log loss of the batches held out."""
    labels, even = split.held.labels, np.ones(len(split.prior))
    if not len(labels):
        return Guesses(posterior, rounds, held, None, families, np.inf, reads)
    fitted = Temperature.fitted(held, labels, even)
    loss = log_loss(fitted.applied(held), labels)
    heat = Temperature(fitted.value, split.prior)
    return Guesses(posterior, rounds, held, heat, families, loss, reads)


def pooled(readers: Sequence[Guesses], split: GameSplit) -> Guesses:
    """Pool several classifiers of the same batches: the mean of their calibrated posteriors.

    Weights are ∝ exp(−n·L): L is a reader's log loss on the batches held out, and n how many of
    these have no record in common. So readers that n batches cannot distinguish count alike, and
    none is chosen by luck. Without batches held out, all count alike.
    Source: Y. Yao et al., "Using stacking to average Bayesian predictive distributions" (2018),
    pseudo-BMA weights.

    Ways to answer from the whole update were compared by the mean AUROC of six splits (forests and
    norms; 100 batches, 600 trials, one round; the sample model, and an MLP of 64 and 32 units): the
    reader best on held-out batches, all elements read together, this pool, and the layer that is
    best on average, which no attacker knows.

    =====================  ======  ========  =====  ==========
    secret                 chosen  together  pool   best layer
    =====================  ======  ========  =====  ==========
    slant of digits        .754    .788      .805   .816
    ink of digits          .639    .629      .638   .659
    sex in Adult           .945    .935      .946   .945
    user (age) in Adult    .616    .616      .672   .647
    =====================  ======  ========  =====  ==========

    These are of a hundred batches held out; with 25, slant has .728 of the chosen and .804 of the
    pool. With the secret shuffled the pool has .472 to .514, a mean layer .485 to .512. Weights
    ∝ exp(−nL/2) and weights fitted with a ridge towards equal ones are within .005 of it; a mean of
    log odds is within .001, but has .625 for users, whose readers nothing calibrates.
    """
    if len(readers) == 1:
        return readers[0]
    shares = shares_of([reader.held_out_loss for reader in readers], independent(split))
    kept = [(reader, float(share)) for reader, share in zip(readers, shares, strict=True) if share]
    even = np.ones(len(split.prior))

    def mixed(posteriors: Sequence[FloatArray], prior: FloatArray) -> FloatArray:
        heats = [reader.temperature.value if reader.temperature else 1.0 for reader, _ in kept]
        cooled = [
            Temperature(heat, prior).applied(x) for heat, x in zip(heats, posteriors, strict=True)
        ]
        weights = np.array([share for _, share in kept])[:, None, None]
        return np.asarray(logsumexp(cooled, axis=0, b=weights))

    reads: dict[str, float] = {}
    for reader, share in kept:
        for source, part in reader.reads.items():
            reads[source] = reads.get(source, 0.0) + share * part
    return calibrated(
        mixed([reader.posterior for reader, _ in kept], split.prior),
        tuple(mixed(each, split.prior) for each in zip(*(r.rounds for r, _ in kept), strict=True)),
        mixed([reader.held for reader, _ in kept], even),
        split,
        tuple(dict.fromkeys(name for reader, _ in kept for name in reader.families)),
        reads,
    )


def shares_of(losses: Sequence[float], count: float) -> FloatArray:
    """Weigh classifiers, with sum one, by their log losses on a number of independent batches."""
    known = np.array(losses)
    if not np.isfinite(known).all():
        return np.full(len(known), 1 / len(known))
    shares = softmax(-count * known)
    shares[shares < _LEAST_SHARE] = 0
    return np.asarray(shares / shares.sum())


def independent(split: GameSplit) -> float:
    """Estimate the number of held-out batches that have no record in common."""
    return len(np.unique(split.held.indices)) / split.size
