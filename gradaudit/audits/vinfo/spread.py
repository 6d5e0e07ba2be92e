"""Intervals of an estimate for another sample of as many records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from gradaudit.audits.vinfo.repetitions import Repetition
from gradaudit.audits.vinfo.v_information import UsableInformation
from gradaudit.core.statistics.intervals import Interval, nadeau_bengio, resampled_variance, wilson
from gradaudit.core.statistics.laws import student_quantile

FloatArray = NDArray[np.float64]
_GRID = np.linspace(-9, 9, 2001)
_SURE = 1 - 1e-12
_UNITS, _MOST_UNITS = 1.25, 1.9
"""Independent trials that a disjoint batch of the rarest value counts as in an AUROC over splits
without number, at most: where the AUROC is 1/2, and where it is near 0 or 1."""


def ranked_share(auroc: float) -> float:
    """Compute the mutual information, over its entropy, of a coin and normal scores of an AUROC.

    The log-likelihood ratio of two normal laws that are d apart is N(d²/2, d²) under its own, and
    AUROC = Φ(d/√2); the share is 1 − E log2(1 + exp(−LLR)).
    """
    apart = _distance(auroc)
    lost = np.logaddexp(0, -(apart**2 / 2 + apart * _GRID)) / np.log(2)
    density = np.exp(-(_GRID**2) / 2)
    return float(max(0.0, 1 - (lost * density).sum() / density.sum()))


def _distance(auroc: float) -> float:
    """Compute the distance of two unit normal laws with this AUROC, in standard deviations."""
    return float(np.sqrt(2) * ndtri(min(max(auroc, 0.5), _SURE)))


@dataclass(frozen=True)
class RecordUse:
    """The use of the records behind repetitions, from which intervals are computed.

    Attributes:
        scored: records in each score set.
        disjoint: how many batches of the rarest value all of them make that share no record or
            user, about.
    """

    scored: int
    fitted: int
    disjoint: float

    @classmethod
    def of(cls, repetition: Repetition) -> RecordUse:
        """Count the use of records in one repetition, which is the same in all others."""
        scored, fitted = len(repetition.parts[-1]), len(repetition.adversary)
        return cls(scored, fitted, repetition.disjoint)

    def interval(self, values: FloatArray, ignorant: float) -> Interval:
        """Compute the interval of a mean over repetitions for another sample of as many records.

        What it estimates is the mean over such samples: what an adversary learns who has as many
        records as this one, not what the gradient holds. Nadeau and Bengio's, with a standard
        error as if one disjoint batch at least were new and told nothing: repetitions that agree
        at the edge of the range do not agree on batches that none of them has seen.

        Args:
            values: (R,) of the repetitions.
            ignorant: the value of who knows nothing.
        """
        least = abs(float(values.mean()) - ignorant) / self.disjoint
        return nadeau_bengio(values, self.scored, self.fitted, least=least)

    def trials(self, repetitions: int) -> float:
        """Compute a mean's effective number of independent trials: D/(1/(R s) + 1 − 1/R).

        D are the disjoint batches of the rarest value, s the share of the records that scores: one
        repetition scores s D of them, and two have the share s of those in common.
        """
        share = self.scored / (self.scored + self.fitted)
        return self.disjoint / (1 / (repetitions * share) + 1 - 1 / repetitions)

    def wilson(self, mean: float, trials: float) -> Interval:
        """Compute Wilson's interval of a share, with Student's quantile for few repetitions."""
        return wilson(mean, trials, student_quantile(max(2 * self.disjoint - 2, 1.0)))


def information_interval(found: Sequence[UsableInformation], sampled: RecordUse) -> Interval:
    """Compute the interval of the information in nats, cut off at 0.

    Nadeau and Bengio's, and Wilson's of the information's share of the entropy as of so many
    independent trials as ``RecordUse.trials`` says: the variance between few splits misses batches
    that no split scores. Of samples of 100 to 1,000 records in batches of 1 to 16, with 3 and 8
    repetitions, it covers 94 to 100 %, Nadeau and Bengio's alone 85 to 100 %
    (``benchmarks/coverage/studies/vinfo.py``). Where every repetition believes the prior alone,
    they agree on nothing learned, and what is not excluded is what their ranking would allow.
    """
    values = np.array([estimate.information for estimate in found])
    entropy = max(estimate.entropy for estimate in found)
    if not values.any():
        ends = auroc_interval(found, sampled)
        return 0.0, entropy * ranked_share(max(ends[1], 1 - ends[0]))
    share = min(max(float(values.mean()) / entropy, 0.0), 1.0)
    least, most = sampled.wilson(share, sampled.trials(len(values)))
    low, high = sampled.interval(values, 0.0)
    return min(low, entropy * least), min(max(high, entropy * most), entropy)


def auroc_interval(found: Sequence[UsableInformation], sampled: RecordUse) -> Interval:
    """Compute Wilson's interval of the AUROC, with the number of independent trials.

    Of an AUROC of 1/2, one of ``RecordUse.trials`` counts as 1.25, of one near 0 or 1.9; all of
    them as fewer, where the variance between repetitions (Nadeau and Bengio's) says so. Of samples
    of 100 to 1,000 records in batches of 1 to 16, with 3 and 8 repetitions, it covers 93 to 100 %,
    Nadeau and Bengio's Student interval 85 to 100 % (``benchmarks/coverage/studies/vinfo.py``).
    """
    values = np.array([estimate.auroc for estimate in found])
    mean = float(values.mean())
    spread = mean * (1 - mean)
    units = min(_MOST_UNITS, _UNITS / max(4 * spread, 1e-9) ** 0.5)
    trials = units * sampled.trials(len(values))
    variance = resampled_variance(values, sampled.scored, sampled.fitted)
    if spread > 0 and variance > 0:
        trials = min(trials, spread / variance)
    return sampled.wilson(mean, trials)


def ranked_alone(found: Sequence[UsableInformation], sampled: RecordUse) -> str:
    """Make a note where a value is ranked better than by chance, but no probability is learned."""
    if any(estimate.information for estimate in found) or auroc_interval(found, sampled)[0] <= 0.5:
        return ""
    return "no repetition's probabilities beat the prior, though its ranking beats chance"
