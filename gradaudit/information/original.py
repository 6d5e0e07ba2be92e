"""Usable information about the input itself, from how often reconstructions succeed.

Source: F. Mo et al., "Quantifying and localizing usable information leakage from neural network
gradients" (2022), definitions 2 and 3, equations 4 and 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from gradaudit.randomness import rng
from gradaudit.statistics.laws import student_quantile

FloatArray = NDArray[np.float64]
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 17))
"""On SSIM, from 0.05 to 0.8 (figure 2)."""
FEWEST = 5
"""Updates from which on a bootstrap over them says something."""
_DRAWS = 10_000


def log_success(successes: FloatArray, restarts: int) -> FloatArray:
    """Log of f = (s + ½) / (R + 1), for s successes of R restarts: finite even for none."""
    return np.asarray(np.log((successes + 0.5) / (restarts + 1)))


def ceiling(restarts: int) -> float:
    """ln((R + ½) / ½) nats: every restart succeeds on every record, and no guess ever does."""
    return math.log((restarts + 0.5) / 0.5)


@dataclass(frozen=True)
class Tally:
    """How often reconstructions and random guesses reach each threshold.

    Attributes:
        successes: (thresholds, members, updates, records) of R restarts.
        guessed: (thresholds, kinds, updates, records) share of the random reconstructions.
        restarts: R.
    """

    successes: FloatArray
    guessed: FloatArray
    restarts: int

    @classmethod
    def of(
        cls,
        similarities: FloatArray,
        guesses: FloatArray,
        thresholds: tuple[float, ...] = THRESHOLDS,
    ) -> Tally:
        """Count similarities that reach thresholds; those that are NaN reach none.

        Args:
            similarities: (members, updates, records, restarts) of reconstructions; NaN where a
                restart diverged.
            guesses: (kinds, updates, records, guesses) of random reconstructions.
            thresholds: τ.
        """
        levels = np.asarray(thresholds).reshape(-1, 1, 1, 1, 1)
        successes = (similarities >= levels).sum(axis=-1).astype(np.float64)
        guessed = (guesses >= levels).mean(axis=-1)
        return cls(successes, guessed, similarities.shape[-1])

    @property
    def gains(self) -> FloatArray:
        """(thresholds, members, updates) mean over an update's records of ln f[g]."""
        return np.asarray(log_success(self.successes, self.restarts).mean(axis=-1))

    @property
    def priors(self) -> FloatArray:
        """(thresholds, kinds, updates) mean of ln f[∅], with the guesses' rate over R rounds."""
        return np.asarray(log_success(self.restarts * self.guessed, self.restarts).mean(axis=-1))

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """(thresholds,) whether any reconstruction or any guess succeeds."""
        most = self.successes.max(axis=(1, 2, 3)), self.guessed.max(axis=(1, 2, 3))
        return np.asarray(np.maximum(*most) > 0)

    @property
    def rates(self) -> FloatArray:
        """(thresholds, members, updates) share of an update's restarts that succeed."""
        return np.asarray(self.successes.mean(axis=-1) / self.restarts)


@dataclass(frozen=True)
class Original:
    """Usable information about the input at every threshold, in nats.

    Attributes:
        members: (thresholds, members) of each attack alone; negative where guessing does better.
        prior: (thresholds,) mean of ln f[∅] of the best kind of guess.
        kinds: (thresholds,) that kind.
    """

    members: FloatArray
    prior: FloatArray
    kinds: NDArray[np.int64]

    @property
    def best(self) -> NDArray[np.int64]:
        """(thresholds,) the member with the most."""
        return np.asarray(self.members.argmax(axis=1))

    @property
    def values(self) -> FloatArray:
        """(thresholds,) of the whole family: guessing is in it, so never negative."""
        return np.asarray(np.maximum(self.members.max(axis=1), 0.0))


def information(tally: Tally) -> Original:
    """Infimum of E[−ln f[∅]] less the infimum of E[−ln f[g]], of the event that SSIM reaches τ.

    Each infimum is over the mean of all records: one member for all of them (equation 4). The
    prior's success is the share of many random reconstructions, counted as R rounds of guessing.
    """
    priors = tally.priors.mean(axis=-1)
    kinds = priors.argmax(axis=1)
    prior = priors.max(axis=1)
    return Original(tally.gains.mean(axis=-1) - prior[:, None], prior, kinds)


@dataclass(frozen=True)
class Spread:
    """95 % expanded percentile bootstrap intervals over updates.

    Attributes:
        values: (thresholds, 2) of the information, members and guesses chosen anew in every draw.
        rates: (thresholds, 2) of the best member's success.
    """

    values: FloatArray
    rates: FloatArray


def spread(tally: Tally, seed: int) -> Spread | None:
    """How much other records could change the numbers; None for fewer than five updates.

    A percentile bootstrap of n clusters is too narrow as one with a normal quantile and a
    deviation over n is; its percentiles are moved out to Φ(±t √(n/(n − 1))), Student's t
    (T. Hesterberg, "What teachers should know about the bootstrap", 2015). Of 8 updates' mean
    rates of normal logits it so covers 93 %, with the percentiles themselves 89 %.
    """
    updates = tally.gains.shape[-1]
    if updates < FEWEST:
        return None
    generator = rng(seed, "vinfo", "bootstrap")
    drawn = generator.multinomial(updates, [1 / updates] * updates, _DRAWS)
    weights = drawn / updates
    gains, priors = (np.einsum("bu,tmu->tbm", weights, of) for of in (tally.gains, tally.priors))
    values = np.maximum(gains.max(axis=2) - priors.max(axis=2), 0.0)
    best = information(tally).best
    rates = tally.rates[np.arange(len(best)), best] @ weights.T
    return Spread(_percentiles(values, updates), _percentiles(rates, updates))


def _percentiles(draws: FloatArray, clusters: int) -> FloatArray:
    quantile = student_quantile(clusters - 1)
    tail = float(ndtr(-quantile * math.sqrt(clusters / (clusters - 1))))
    return np.asarray(np.quantile(draws, (tail, 1 - tail), axis=1).T)
