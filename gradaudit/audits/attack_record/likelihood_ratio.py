"""The likelihood ratio of a record in and out of an update, and the choice of the score.

Updates are projected on candidates' gradients with the covariance of others removed. With X the n
centred rows that shadow gradients or updates are, S_λ = XᵀX/n + λI, and by Woodbury's identity
λ dᵀ S_λ⁻¹ u = ⟨d, u⟩ − (Xd)ᵀ (XXᵀ + nλI)⁻¹ Xu: inner products are all that it takes, of layers of
any size, and those of the whole update are the sums of its layers'.

A candidate's projections t of shadow updates without it are taken for normal, with the mean m and
deviation s that they have (Carlini et al. 2022, section V and equation 4). With it the mean is
m + a (q − m), q being its own projection, and the variance ρ s².
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from gradaudit.games.scores import area

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
_COLUMNS = 4096
"""Elements whose products are taken at a time, in double precision."""
RIDGES = (0.1, 0.01, 1.0, 10.0, math.inf)
"""Shrinkages that are tried, over the mean eigenvalue of the shadow rows' inner products."""
KINDS = ("likelihood ratio", "projection")
_LEAST_VARIANCE = 1e-10


@dataclass(frozen=True)
class InnerProducts:
    """Inner products of centred gradients.

    Attributes:
        shadow: (n, n) of shadow rows with each other.
        of_candidates: (candidates, n) with shadow rows.
        of_updates: (n, updates) with shadow rows.
        across: (candidates, updates).
        lengths: (candidates,) squared lengths of candidates'.
    """

    shadow: Tensor
    of_candidates: Tensor
    of_updates: Tensor
    across: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, shadow: Tensor, candidates: Tensor, updates: Tensor, mean: Tensor) -> InnerProducts:
        """Take inner products of rows (…, elements).

        ``mean`` is subtracted from candidates, the mean of shadow rows from all others.
        """
        centre, total = shadow.double().mean(dim=0), None
        for start in range(0, shadow.shape[1], _COLUMNS):
            part = slice(start, start + _COLUMNS)
            x, u = (rows[:, part].double() - centre[part] for rows in (shadow, updates))
            d = candidates[:, part].double() - mean[part].double()
            found = cls(x @ x.T, d @ x.T, x @ u.T, d @ u.T, d.square().sum(dim=1))
            total = found if total is None else total + found
        assert total is not None
        return total

    def __add__(self, other: InnerProducts) -> InnerProducts:
        """Add inner products of two layers: those of both layers' elements together."""
        names = [field.name for field in fields(self)]
        return InnerProducts(*(getattr(self, name) + getattr(other, name) for name in names))

    def projections(self, ridge: float) -> tuple[FloatArray, FloatArray]:
        """Return λ dᵀ S_λ⁻¹ u (candidates, updates) and λ dᵀ S_λ⁻¹ d (candidates,).

        Args:
            ridge: nλ over the mean eigenvalue of XXᵀ; infinite for plain inner products.
        """
        if math.isinf(ridge):
            return self.across.numpy(), self.lengths.numpy()
        values, of_candidates, of_updates = self._axes
        weights = 1 / (values.clamp(min=0) + ridge * values.mean().clamp(min=1e-300))
        removed = (of_candidates * weights) @ of_updates
        own = (of_candidates.square() * weights).sum(dim=1)
        return (self.across - removed).numpy(), (self.lengths - own).numpy()

    @cached_property
    def _axes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues of the shadow rows' products, and the other products along their axes."""
        values, vectors = torch.linalg.eigh(self.shadow)
        return values, self.of_candidates @ vectors, vectors.T @ self.of_updates


@dataclass(frozen=True)
class CandidatePairs:
    """Pairs of an update and a candidate, and whether the update contains it.

    Attributes:
        updates: (pairs,) which update.
        records: (pairs,) which record.
        inside: (pairs,) whether the record is behind the update.
    """

    updates: IntArray
    records: IntArray
    inside: BoolArray

    @cached_property
    def independent(self) -> tuple[int, int]:
        """Count independent trials at most, and clusters: updates or records, the fewer of them."""
        records = len(np.unique(self.records[self.inside]))
        least = min(records, len(np.unique(self.records[~self.inside])))
        clusters = min(len(np.unique(self.updates)), records)
        return least, clusters if clusters > 1 else least


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
    members: BoolArray
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
    return area(scores[pairs.records, pairs.updates], pairs.inside)


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
