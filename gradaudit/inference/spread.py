"""What other records could make of an estimate: its interval, and whether to trust it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradaudit.inference.learning import ranked_share
from gradaudit.inference.repetitions import Repetition
from gradaudit.inference.usable import Usable
from gradaudit.statistics import CONFIDENCE
from gradaudit.statistics.student import resampled

FloatArray = NDArray[np.float64]
Interval = tuple[float, float]

FEWEST = 20
"""Disjoint batches of the rarest value below which an interval is not to be trusted."""


@dataclass(frozen=True)
class Sampled:
    """How the records behind repetitions were used.

    Attributes:
        scored: records in each score set.
        fitted: records of the adversary.
        disjoint: how many batches of the rarest value all of them make that share no record or
            user, about.
    """

    scored: int
    fitted: int
    disjoint: float

    @classmethod
    def of(cls, repetition: Repetition) -> "Sampled":
        """As in a repetition, and in all others."""
        scored, fitted = len(repetition.parts[-1]), len(repetition.adversary)
        return cls(scored, fitted, repetition.disjoint)

    def interval(
        self, values: FloatArray, ignorant: float, confidence: float = CONFIDENCE
    ) -> Interval:
        """Interval of a mean over repetitions for another sample of as many records.

        What it estimates is the mean over such samples: what an adversary learns who has as many
        records as this one, not what the gradient holds. Nadeau and Bengio's, with a standard
        error as if one disjoint batch at least were new and told nothing: repetitions that agree
        at the edge of the range do not agree on batches that none of them has seen.

        Args:
            values: (R,) of the repetitions.
            ignorant: the value of who knows nothing.
            confidence: of the interval.
        """
        least = abs(float(values.mean()) - ignorant) / self.disjoint
        return resampled(values, self.scored, self.fitted, confidence, least=least)


def information_interval(found: Sequence[Usable], sampled: Sampled) -> Interval:
    """Of the information, in nats; reaches 0 at least, as information is not negative.

    Where every repetition believes the prior alone, they agree on nothing learned, and what is not
    excluded is what their ranking would allow.
    """
    values = np.array([each.information for each in found])
    if values.any():
        low, high = sampled.interval(values, 0.0)
        return low, max(high, 0.0)
    ends = auroc_interval(found, sampled)
    return 0.0, found[0].entropy * ranked_share(max(ends[1], 1 - ends[0]))


def auroc_interval(found: Sequence[Usable], sampled: Sampled) -> Interval:
    """Of the AUROC, within [0, 1]."""
    low, high = sampled.interval(np.array([each.auroc for each in found]), 0.5)
    return max(0.0, low), min(1.0, high)


def imprecise(found: Sequence[Usable], sampled: Sampled) -> str:
    """Why the intervals are not to be trusted; empty where they are.

    Below ``FEWEST`` disjoint batches of the rarest value.
    """
    if sampled.disjoint < FEWEST:
        records = sampled.scored + sampled.fitted
        wanted = int(np.ceil(records * FEWEST / sampled.disjoint))
        return (
            f"the {records} records make only {sampled.disjoint:.3g} batches of the rarest value "
            f"without a record or user in common; {FEWEST} are needed, about {wanted} records "
            "(or users in proportion), or smaller batches"
        )
    if not any(each.information for each in found) and auroc_interval(found, sampled)[0] > 0.5:
        return "no repetition's probabilities beat the prior, though its ranking beats chance"
    return ""
