"""Scores of guesses of a private value, over one or several repetitions of a game.

Every score is a mean over trials, or a two-sample one, whose trials share records: its variance is
that of an incomplete U-statistic (``core.statistics.u_statistic``), from what each trial adds to
its error. Rates have Wilson's interval on as many trials as would be so exact if they were
independent, with Student's quantile, which keeps its level near 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradaudit.core.statistics.intervals import Interval, difference, wilson
from gradaudit.core.statistics.laws import binomial_quantile, student_quantile
from gradaudit.core.statistics.u_statistic import Draws, disjoint, pooled, project

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
FALSE_POSITIVES = 0.01
ENOUGH = 20
"""Batches of a value without a record in common in one private set, below which variances count
half as much again: with 2.5 to 20 of them the intervals of success and AUROC so hold the truth in
94 to 100 % of simulated games, without it in 87 to 100 %
(``benchmarks/coverage/studies/attack.py``)."""
_MOST = 10
"""Independent trials that a batch without a record in common counts as, at most."""
ROOM = 50
"""Such batches in one private set, where nobody says how large batches are: then the interval of
the AUROC gain lies below .2 for 95 % of attributes that nothing tells, and above .25 for 90 % of
those with an AUROC of .9 (100 simulated games of 2,000 records, three repetitions)."""


def success(log_probabilities: FloatArray, labels: IntArray) -> FloatArray:
    """Whether the likeliest value is the true one, (trials,); values that tie share it."""
    likeliest = log_probabilities == log_probabilities.max(axis=1, keepdims=True)
    return np.asarray(likeliest[np.arange(len(labels)), labels] / likeliest.sum(axis=1))


def losses(log_probabilities: FloatArray, labels: IntArray) -> FloatArray:
    """Compute −log p of the true value in nats, (trials,)."""
    return np.asarray(-log_probabilities[np.arange(len(labels)), labels])


def log_odds(log_probabilities: FloatArray, value: int) -> FloatArray:
    """Log-odds of a value against all others, (trials,), exact also where p is almost 1."""
    others = np.delete(log_probabilities, value, axis=1)
    highest = others.max(axis=1)
    rest = highest + np.log(np.exp(others - highest[:, None]).sum(axis=1))
    return np.asarray(log_probabilities[:, value] - rest)


class Score(NamedTuple):
    """A number and its interval."""

    value: float
    interval: Interval


def auroc(scores: ArrayLike, positive: ArrayLike) -> Score:
    """Compute the area under the ROC curve, with its interval.

    P(s₊ > s₋) + ½ P(s₊ = s₋) of a positive and a negative trial. The interval is Wilson's, on as
    many independent trials as the variance of DeLong, DeLong and Clarke-Pearson (1988) is worth; it
    holds for independent trials.

    >>> area = auroc([0.1, 0.4, 0.35, 0.8], [False, False, True, True])
    >>> area.value, [round(end, 2) for end in area.interval]
    (0.75, [0.01, 1.0])

    Args:
        scores: (trials,).
        positive: (trials,), both kinds among them.

    Raises:
        ValueError: a score is not a number, or all trials are of one kind.
    """
    scores, positive = np.asarray(scores), np.asarray(positive, bool)
    if np.isnan(scores).any() or positive.all() or not positive.any():
        raise ValueError("auroc needs scores without NaN, and positive and negative trials")
    value, placed = area(scores, positive), placements(scores, positive)
    sides = int(positive.sum()), int((~positive).sum())
    variance = float(np.square((placed - value) / np.where(positive, *sides)).sum())
    fewest = min(sides)
    count = min(value * (1 - value) / variance, _MOST * fewest) if variance > 0 else fewest
    quantile = student_quantile(max(fewest - 1, 1))
    return Score(value, wilson(value, max(count, 1.0), quantile))


def area(scores: FloatArray, positive: NDArray[np.bool_]) -> float:
    """Compute the area under the ROC curve without its interval, ties counting half."""
    sides = np.sort(scores[positive]), np.sort(scores[~positive])
    return float(_below(*sides).sum() / (2 * len(sides[0]) * len(sides[1])))


def roc(scores: FloatArray, positive: NDArray[np.bool_], rates: FloatArray) -> FloatArray:
    """True positive rates at false positive rates, (rates,): the curve whose area is the AUROC.

    Between the points of the curve lie straight lines, as ties count half.

    Args:
        scores: (trials,).
        positive: (trials,), both kinds among them.
        rates: (rates,) from 0 to 1.
    """
    thresholds = np.unique(scores)[::-1]
    sides = (np.sort(scores[~positive]), np.sort(scores[positive]))
    false, true = (
        np.append(0.0, (len(side) - np.searchsorted(side, thresholds, "left")) / len(side))
        for side in sides
    )
    return np.asarray(np.interp(rates, false, true))


def _below(scores: FloatArray, others: FloatArray) -> NDArray[np.int64]:
    """Returns twice the number of others (ascending) below each score; a tie counts once."""
    return np.asarray(
        np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")
    )


def placements(scores: FloatArray, positive: NDArray[np.bool_]) -> FloatArray:
    """Share of the other side that each trial is on the right side of, (trials,), ties half.

    The mean over positives, and that over negatives, is the AUROC; less that mean it is what a
    trial adds to the AUROC's error (DeLong, DeLong and Clarke-Pearson 1988).
    """
    places = np.empty(len(scores))
    for side in (True, False):
        others = np.sort(scores[positive != side])
        share = _below(scores[positive == side], others) / (2 * len(others))
        places[positive == side] = share if side else 1 - share
    return places


class TruePositives(NamedTuple):
    """The true positive rate at a threshold, and which positive trials lie above it."""

    rate: float
    above: NDArray[np.bool_]


def tpr_at_fpr(scores: ArrayLike, positive: ArrayLike, share: float = 0.01) -> TruePositives:
    """Compute the true positive rate at a false positive rate.

    P(s₊ > τ) at the smallest threshold τ that at most this share of the negative trials exceeds
    (Carlini et al. 2022, "Membership inference attacks from first principles", section 2.3).

    >>> scores = np.r_[np.arange(200.0), 150.5, 197.5, 198.5, 199.5]
    >>> tpr_at_fpr(scores, np.arange(204) >= 200, 0.01).rate
    0.75

    Args:
        scores: (trials,).
        positive: (trials,), both kinds among them.
        share: of the negative trials.
    """
    scores, positive = np.asarray(scores), np.asarray(positive, bool)
    negatives = np.sort(scores[~positive])[::-1]
    allowed = int(share * len(negatives) + 1e-9)
    least = negatives[allowed] if allowed < len(negatives) else -np.inf
    above = np.asarray(scores[positive] > least)
    return TruePositives(float(above.mean()), above)


def advantage(success: float, blind: float) -> float:
    """Compute an attacker's advantage over the best blind guess.

    max(p − p*, 0)/(1 − p*), with p the rate of success and p* that of the likeliest value (Li et
    al. 2024, section 5.1.2).

    >>> round(advantage(0.93, 0.5), 2), advantage(0.4, 0.5)
    (0.86, 0.0)
    """
    return max(success - blind, 0.0) / (1 - blind)


@dataclass(frozen=True)
class Trials:
    """The values to guess in one repetition.

    Attributes:
        labels: (trials,) the true values.
    """

    labels: IntArray
    draws: Draws


@dataclass(frozen=True)
class Scores:
    """Scores over repetitions of a game on other splits of the same records."""

    repetitions: Sequence[Trials]

    def rates(self, posteriors: Sequence[FloatArray]) -> dict[str, Score]:
        """ASR, AUROC and true positive rate at 1 % false positives, by name.

        The AUROC and the true positive rate are of each value against the rest, averaged. The
        interval of the true positive rate spans the thresholds that may be at 1 %; it starts at 0
        where fewer than 100 separate batches of other values cannot say how high that is.

        Args:
            posteriors: of each repetition, (trials, values) log-probabilities.
        """
        rates = self._pooled(posteriors, partial(_of_rates, self._false_positives))
        asr, area, strict, at, lax = (self._rate(*rate) for rate in rates)
        found = self.fewest_negatives * FALSE_POSITIVES >= 1
        ends = strict.interval[0] if found else 0.0, lax.interval[1]
        return {"asr": asr, "auroc": area, "tpr_at_1pct_fpr": Score(at.value, ends)}

    def log_loss(self, posteriors: Sequence[FloatArray]) -> Score:
        """Mean of −log p of the true value, in nats."""
        ((value, variance),) = self._pooled(
            posteriors, lambda posterior, labels: _means(losses(posterior, labels)[:, None])
        )
        margin = self._quantile * float(np.sqrt(variance))
        return Score(value, (max(value - margin, 0.0), value + margin))

    @cached_property
    def disjoint(self) -> FloatArray:
        """Returns the number of batches of each value that share no record (or user)."""
        return disjoint([trials.draws for trials in self.repetitions])

    @cached_property
    def room(self) -> FloatArray:
        """The room in the private set of one repetition."""
        rooms = [disjoint([trials.draws]) for trials in self.repetitions]
        return np.asarray(np.mean(rooms, axis=0))

    @cached_property
    def fewest_negatives(self) -> float:
        """Count the separate batches, and a repetition's trials, of all but the commonest value."""
        trials = [_rest(np.bincount(repetition.labels)) for repetition in self.repetitions]
        return min(_rest(self.disjoint), *trials)

    @property
    def _quantile(self) -> float:
        """Returns Student's quantile, with a degree of freedom a disjoint batch less one a mean."""
        free = max(float(self.disjoint.sum()) - len(self.disjoint), 1.0)
        return student_quantile(free)

    @property
    def _false_positives(self) -> tuple[float, float, float]:
        """1 %, between the shares at which the threshold of 1 % lies with a chance of 80 %.

        With the rate's own 95 % at both ends that covers 95 to 99 % in simulation.
        """
        count = self.fewest_negatives
        low, high = (
            binomial_quantile(tail, round(count), FALSE_POSITIVES) / count for tail in (0.1, 0.9)
        )
        return low, FALSE_POSITIVES, max(high, FALSE_POSITIVES)

    def _pooled(
        self,
        posteriors: Sequence[FloatArray],
        scores: Callable[[FloatArray, IntArray], tuple[FloatArray, FloatArray]],
    ) -> list[tuple[float, float]]:
        """Pool every score's values and errors by trial into (value, variance)."""
        pairs = zip(posteriors, self.repetitions, strict=True)
        means, variances = pooled(
            [
                project(*scores(posterior, trials.labels), trials.draws)
                for posterior, trials in pairs
            ]
        )
        return list(zip(means.tolist(), variances.tolist(), strict=True))

    def _rate(self, value: float, variance: float) -> Score:
        """A rate, as of so many independent trials as its variance says.

        The variance is itself estimated from the trials that came out otherwise than most: the
        fewer of them n disjoint batches hold, the nearer to 4n the count is kept (overlapping
        batches make a rate up to three times as exact in simulation), and n if there are none.
        With few disjoint batches it is taken for half as large again.
        """
        room = float(self.disjoint.sum())
        spread = value * (1 - value)
        most = min(4 * room * (1 + 4 * room * spread), _MOST * room)
        count = min(spread / variance, most) if variance > 0 else room
        caution = 1 + min(ENOUGH / float(self.room.min()), 1.0) / 2
        return Score(value, wilson(value, count / caution, self._quantile))


def gain(one: Score, other: Score, scale: float = 1.0) -> Score:
    """Returns how much one rate is above another, of other trials, in units of ``scale``."""
    low, high = difference(one.value, one.interval, other.value, other.interval)
    return Score((one.value - other.value) / scale, (low / scale, high / scale))


def _rest(counts: NDArray[np.generic]) -> float:
    """Returns all but the largest, or the only one."""
    return float(counts.sum() - counts.max()) if len(counts) > 1 else float(counts.sum())


def _of_rates(
    shares: Sequence[float], posterior: FloatArray, labels: IntArray
) -> tuple[FloatArray, FloatArray]:
    """ASR, AUROC, true positive rates at shares of false ones: values and errors by trial."""
    hits, hit_errors = _means(success(posterior, labels)[:, None])
    present = np.unique(labels)
    values = np.zeros(1 + len(shares))
    errors = np.zeros((len(labels), 1 + len(shares)))
    for value in present:
        scores, positive = log_odds(posterior, int(value)), labels == value
        placed = placements(scores, positive)
        area = float(placed[positive].mean())
        sides = np.where(positive, positive.sum(), (~positive).sum())
        found = [tpr_at_fpr(scores, positive, share) for share in shares]
        values += np.array([area, *(each.rate for each in found)])
        errors[:, 0] += (placed - area) / sides
        for place, (rate, above) in enumerate(found, start=1):
            errors[positive, place] += (above - rate) / positive.sum()
    number = len(present)
    return np.r_[hits, values / number], np.c_[hit_errors, errors / number]


def _means(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means of (trials, scores), and what each trial adds to their errors."""
    means = values.mean(axis=0)
    return means, (values - means) / len(values)
