"""AUROC and true positive rates of pairs of updates and records, with intervals.

Pairs of one update share its batch, and a record is a candidate of several updates: what each pair
adds to a score's error is summed over the pairs of an update, and over those of a record, and the
variance is the sum of both squares less that of the pairs alone (A. Cameron, J. Gelbach and D.
Miller, "Robust inference with multiway clustering", 2011), at least that of either alone.

That holds the attacker fixed. The game is repeated with other attackers on other splits of the
records, and the variance of the mean over R games is s² (1/R + n/(N − n)), with s² that between
games and n of N records in the largest set (Nadeau and Bengio 2003); where every game attacks the
same batch, that within a game is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradaudit.audits.attack_record.likelihood_ratio import CandidatePairs, FloatArray
from gradaudit.core.statistics.intervals import resampled_variance, wilson
from gradaudit.core.statistics.laws import binomial_quantile, student_quantile
from gradaudit.games.scores import Score, placements, tpr_at_fpr

_TAIL = 0.1
"""Chance that the threshold lies beyond each end of the false positives' allowance."""
_FEWEST_ABOVE = 2
"""Fewest pairs outside that may lie above the threshold: of 1.4 pairs the interval held the truth
in 87 to 93 % of simulated studies, of 2.2 to 33 in 95 % or more."""


@dataclass(frozen=True)
class Rate:
    """A rate in one game.

    Attributes:
        value: of the rate.
        variance: over records and updates, for this attacker.
        most: independent trials that it counts as, at most.
        clusters: updates or records, whichever are fewer, whose variance it is.
    """

    value: float
    variance: float
    most: float
    clusters: int


@dataclass(frozen=True)
class RepeatedGames:
    """How games on the same records depend on each other.

    Attributes:
        largest: records in the largest set of a game.
        rest: records that are in other sets or in none.
        redrawn: whether every game attacks other records.
    """

    largest: int
    rest: int
    redrawn: bool = True

    def score(self, rates: Sequence[Rate]) -> Score:
        """Average a rate over games; its interval is Wilson's for the effective sample size."""
        values = np.array([rate.value for rate in rates])
        value, number = float(values.mean()), len(values)
        variance = float(np.mean([rate.variance for rate in rates]))
        most = float(np.mean([rate.most for rate in rates]))
        clusters = min(rate.clusters for rate in rates)
        if number > 1:
            between = resampled_variance(values, self.largest, self.rest)
            variance = max(between, variance / number) if self.redrawn else between + variance
            clusters = number
        spread = value * (1 - value)
        count = min(spread / variance, 10 * most) if variance > 0 else most
        return Score(value, wilson(value, max(count, 1.0), student_quantile(clusters - 1)))

    def within(self, rates: Sequence[tuple[Rate, Rate, Rate]]) -> Score:
        """Average a rate at a threshold that lies between a strict and a lax one."""
        strict, at, lax = (self.score(each) for each in zip(*rates, strict=True))
        ends = strict.interval[0], lax.interval[1]
        return Score(at.value, (min(ends[0], at.value), max(ends[1], at.value)))


@dataclass(frozen=True)
class PairScores:
    """Scores (pairs,) of the pairs."""

    scores: FloatArray
    pairs: CandidatePairs

    def auroc(self) -> Rate:
        """The area under the ROC curve, ties counting half."""
        inside = self.pairs.inside
        placed = placements(self.scores, inside)
        area = float(placed[inside].mean())
        sides = np.where(inside, inside.sum(), (~inside).sum())
        return self._rate(area, (placed - area) / sides)

    def at(self, share: float) -> tuple[Rate, Rate, Rate] | None:
        """Compute the true positive rate at a false positive rate; None for too few pairs.

        The threshold may be any that lies at this share with a chance of 80 %, by as many
        independent pairs outside as the variance of their rate says: at the strictest, at the
        share itself, and at the laxest.
        """
        inside = self.pairs.inside
        outside = ~inside
        if outside.sum() * share < _FEWEST_ABOVE:
            return None
        strict, lax = self._levels(share)
        return self._above(strict), self._above(share), self._above(lax)

    def independent(self, share: float) -> float:
        """Compute the effective number of independent pairs without the record."""
        outside = ~self.pairs.inside
        scores = self.scores[outside]
        over = scores > np.quantile(scores, 1 - share, method="higher")
        errors = np.zeros(len(self.scores))
        errors[outside] = (over - over.mean()) / len(scores)
        variance = self._variance(errors)
        rate = max(float(over.mean()), 1 / len(scores))
        return min(rate * (1 - rate) / variance, len(scores)) if variance > 0 else len(scores)

    def _levels(self, share: float) -> tuple[float, float]:
        count = self.independent(share)
        low, high = (binomial_quantile(t, round(count), share) for t in (_TAIL, 1 - _TAIL))
        return low / count, max(high / count, share)

    def _above(self, share: float) -> Rate:
        inside = self.pairs.inside
        rate, over = tpr_at_fpr(self.scores, inside, share)
        errors = np.zeros(len(self.scores))
        errors[inside] = (over - rate) / len(over)
        return self._rate(rate, errors)

    def _rate(self, value: float, errors: FloatArray) -> Rate:
        return Rate(value, self._variance(errors), *self.pairs.independent)

    def _variance(self, errors: FloatArray) -> float:
        """Compute the variance of a score from each pair's influence on it, (pairs,)."""
        by = [np.bincount(x, errors) for x in (self.pairs.updates, self.pairs.records)]
        updates, records = (float(sums @ sums) for sums in by)
        alone = float(errors @ errors)
        several = len(by[0]) > 1
        return max(updates + records - alone, updates, records) if several else max(records, alone)
