"""The likelihood ratio of a record in and out of an update, and the choice of the score.

A candidate's projections t of shadow updates without it are taken for normal, with the mean m and
deviation s that they have (Carlini et al. 2022, section V and equation 4). With it the mean is
m + a (q − m), q being its own projection, and the variance ρ s².
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.audits.attack_record.projection import FloatArray, InnerProducts
from gradaudit.audits.attack_record.record_sets import CandidatePairs
from gradaudit.games.scores import auroc

RIDGES = (0.1, 0.01, 1.0, 10.0, math.inf)
"""Shrinkages that are tried, over the mean eigenvalue of the shadow rows' inner products."""
KINDS = ("likelihood ratio", "projection")
_LEAST_VARIANCE = 1e-10


@dataclass(frozen=True)
class Placed:
    """Positions of shadow and attacked pairs in the inner products (candidates, updates).

    Attributes:
        shadow: pairs of shadow updates, by row and column.
        attacked: pairs of attacked updates.
        columns: how many shadow updates come first among the columns.
        members: (candidates, shadow updates) whether a candidate is behind one.
        share: of a record in an update, where that is known; None where it is fitted.
    """

    shadow: CandidatePairs
    attacked: CandidatePairs
    columns: int
    members: NDArray[np.bool_]
    share: float | None


@dataclass(frozen=True)
class PresenceScores:
    """Scores of all candidates at all updates.

    Attributes:
        scores: (candidates, updates).
        words: how they were chosen, for the report.
        shadow_auroc: AUROC of the scores at shadow updates, by which they were chosen.
    """

    scores: FloatArray
    words: Mapping[str, JsonValue]
    shadow_auroc: float

    @classmethod
    def chosen(cls, products: InnerProducts, placed: Placed) -> Self:
        """Choose the scores that have the highest AUROC at shadow updates."""
        return cls.best(
            each
            for ridge in RIDGES
            for each in cls._of_ridge(*products.projections(ridge), placed, ridge)
        )

    @classmethod
    def best(cls, tried: Iterable[Self]) -> Self:
        """Return the first of the scores that have the highest AUROC at shadow updates."""
        return max(tried, key=lambda each: each.shadow_auroc)

    @classmethod
    def _of_ridge(
        cls, projected: FloatArray, own: FloatArray, placed: Placed, ridge: float
    ) -> Iterable[Self]:
        deviations, moved = standardised(projected, own, placed)
        share, variance = in_law(deviations, moved, placed)
        left = deviations - share * moved[:, None]
        ratio = (deviations**2 - left**2 / variance - math.log(variance)) / 2
        for kind, scores in zip(KINDS, (ratio, deviations), strict=True):
            words: dict[str, JsonValue] = {"statistic": kind, "share": share, "variance": variance}
            words["ridge"] = "infinite" if math.isinf(ridge) else ridge
            yield cls(scores, words, auroc_of_pairs(scores, placed.shadow))


def auroc_of_pairs(scores: FloatArray, pairs: CandidatePairs) -> float:
    """AUROC of scores (candidates, updates) at these pairs."""
    return auroc(scores[pairs.records, pairs.updates], pairs.inside)


def standardised(
    projected: FloatArray, own: FloatArray, placed: Placed
) -> tuple[FloatArray, FloatArray]:
    """Standardise t and q by the shadow mean m and deviation s: (t − m)/s and (q − m)/s.

    m and s are over shadow updates that a candidate is not behind.
    """
    out = ~placed.members
    shadow, count = projected[:, : placed.columns], out.sum(axis=1).clip(min=2)
    mean = np.where(out, shadow, 0.0).sum(axis=1) / count
    square = np.where(out, (shadow - mean[:, None]) ** 2, 0.0).sum(axis=1) / (count - 1)
    deviation = np.sqrt(square.clip(min=np.finfo(float).tiny))
    return (projected - mean[:, None]) / deviation[:, None], (own - mean) / deviation


def in_law(deviations: FloatArray, moved: FloatArray, placed: Placed) -> tuple[float, float]:
    """Fit a, unless it is known, and ρ on shadow updates that contain a candidate."""
    pairs = placed.shadow
    rows, columns = pairs.records[pairs.inside], pairs.updates[pairs.inside]
    seen, full = deviations[rows, columns], moved[rows]
    share = placed.share
    if share is None:
        share = float(seen @ full) / max(float(full @ full), np.finfo(float).tiny)
    return share, max(float(np.mean((seen - share * full) ** 2)), _LEAST_VARIANCE)
