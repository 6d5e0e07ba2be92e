"""Computes usable information about the input from how often reconstructions succeed.

Source: F. Mo et al., "Quantifying and localizing usable information leakage from neural network
gradients" (2022), definitions 2 and 3, equations 4 and 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradaudit.statistics.intervals import clustered

FloatArray = NDArray[np.float64]
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 17))
"""On SSIM, from 0.05 to 0.8 (figure 2)."""


def log_success(successes: FloatArray, restarts: int) -> FloatArray:
    """Compute ln f, f = (s + ½) / (R + 1), of s successes in R restarts: finite for s = 0."""
    return np.asarray(np.log((successes + 0.5) / (restarts + 1)))


def ceiling(restarts: int) -> float:
    """Compute ln((R + ½) / ½) nats: all restarts succeed on all records, and no guess does."""
    return math.log((restarts + 0.5) / 0.5)


@dataclass(frozen=True)
class Tally:
    """Counts of reconstructions and random guesses that reach each threshold.

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
        """Average ln f[g] over an update's records, (thresholds, members, updates)."""
        return np.asarray(log_success(self.successes, self.restarts).mean(axis=-1))

    @property
    def priors(self) -> FloatArray:
        """Average ln f[∅], (thresholds, kinds, updates), with the guesses' rate over R rounds."""
        return np.asarray(log_success(self.restarts * self.guessed, self.restarts).mean(axis=-1))

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Whether any reconstruction or any guess succeeds, (thresholds,)."""
        most = self.successes.max(axis=(1, 2, 3)), self.guessed.max(axis=(1, 2, 3))
        return np.asarray(np.maximum(*most) > 0)

    @property
    def rates(self) -> FloatArray:
        """Compute the share of restarts that succeed, (thresholds, members, updates)."""
        return np.asarray(self.successes.mean(axis=-1) / self.restarts)


@dataclass(frozen=True)
class Original:
    """Usable information about the input at every threshold, in nats, with its best attack.

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
        """The attack with the most information, (thresholds,)."""
        return np.asarray(self.members.argmax(axis=1))

    @property
    def values(self) -> FloatArray:
        """The family's information (thresholds,): guessing is a member, so it is never negative."""
        return np.asarray(np.maximum(self.members.max(axis=1), 0.0))


def information(tally: Tally) -> Original:
    """Compute inf E[−ln f[∅]] − inf E[−ln f[g]], for the event that SSIM reaches τ.

    Each infimum is over the mean of all records: one member for all of them (equation 4). The
    prior's success is the share of many random reconstructions, counted as R rounds of guessing.
    """
    priors = tally.priors.mean(axis=-1)
    kinds = priors.argmax(axis=1)
    prior = priors.max(axis=1)
    return Original(tally.gains.mean(axis=-1) - prior[:, None], prior, kinds)


@dataclass(frozen=True)
class Spread:
    """The 95 % intervals over updates.

    Attributes:
        values: (thresholds, 2) of the information.
        rates: (thresholds, 2) of the best member's success.
    """

    values: FloatArray
    rates: FloatArray


def spread(tally: Tally) -> Spread:
    """Compute intervals over records, by ``clustered`` over the updates.

    The information of an update, of one member against one kind of guess, lies within ``ceiling``
    nats of 0, and so is a share of that range. The family's is the largest over members of the
    smallest over kinds of guess, and so are its ends.
    """
    members = np.full(tally.gains.shape[-1], float(tally.restarts * tally.successes.shape[-1]))
    most = ceiling(tally.restarts)
    gains = tally.gains[:, :, None] - tally.priors[:, None]
    shares = np.clip((gains / most + 1) / 2, 0.0, 1.0)
    ends = np.apply_along_axis(_interval, -1, shares, members)
    values = most * (2 * ends.min(axis=2).max(axis=1) - 1)
    best = information(tally).best
    rates = [_interval(tally.rates[at, member], members) for at, member in enumerate(best)]
    return Spread(np.maximum(values, 0.0), np.asarray(rates))


def _interval(shares: FloatArray, sizes: FloatArray) -> FloatArray:
    return np.asarray(clustered(shares, sizes)[1])
