"""Projections of updates on candidates' gradients with the covariance of others removed.

With X the n centred rows that shadow gradients or updates are, S_λ = XᵀX/n + λI, and by Woodbury's
identity λ dᵀ S_λ⁻¹ u = ⟨d, u⟩ − (Xd)ᵀ (XXᵀ + nλI)⁻¹ Xu: inner products are all that it takes, of
layers of any size, and those of the whole update are the sums of its layers'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]
_COLUMNS = 4096
"""Elements whose products are taken at a time, in double precision."""


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
        values, vectors = self._axes
        weights = 1 / (values.clamp(min=0) + ridge * values.mean().clamp(min=1e-300))
        of_candidates = self.of_candidates @ vectors
        removed = (of_candidates * weights) @ (vectors.T @ self.of_updates)
        own = (of_candidates.square() * weights).sum(dim=1)
        return (self.across - removed).numpy(), (self.lengths - own).numpy()

    @cached_property
    def _axes(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.shadow)
        return values, vectors
