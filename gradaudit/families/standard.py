"""Features as classifiers like them: centred, of one scale, and no wider than the rows span."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from gradaudit.families.base import Features, FloatArray

_FLAT = 1e-6
"""A column that varies by less than this share of its largest entry is rounding, and constant."""


@dataclass(frozen=True)
class Scale:
    """Centre and deviation of columns, as found on the rows that were fitted.

    Works for columns of any size, gradients of 1e-8 and 1e8 alike; constant columns are left out.

    Attributes:
        kept: (features,) which columns vary.
        centre: (kept,).
        deviation: (kept,).
    """

    kept: np.ndarray
    centre: FloatArray
    deviation: FloatArray

    @classmethod
    def of(cls, features: Features) -> Self:
        """Fit on rows (rows, features)."""
        values = np.asarray(features, dtype=np.float64)
        largest = np.abs(values).max(axis=0)
        unit = np.where(largest > 0, largest, 1)
        centre = (values / unit).mean(axis=0)
        deviation = (values / unit).std(axis=0)
        kept = deviation > _FLAT
        return cls(kept, (centre * unit)[kept], (deviation * unit)[kept])

    def __call__(self, features: Features) -> FloatArray:
        """Rows in units of deviations, (rows, kept)."""
        values = np.asarray(features, dtype=np.float64)[:, self.kept]
        return np.asarray((values - self.centre) / self.deviation)


@dataclass(frozen=True)
class Projection:
    """Standardised rows in an orthonormal basis of the fitted rows' span, over √features.

    For a linear predictor whose weights are penalised by their L2 norm, nothing is lost: its
    weights lie in that span.

    Attributes:
        scale: what standardises.
        basis: (kept, directions), largest spread first.
    """

    scale: Scale
    basis: FloatArray

    @classmethod
    def of(cls, features: Features, directions: int | None = None) -> Self:
        """Fit on rows (rows, features), keeping at most so many directions."""
        scale = Scale.of(features)
        rows = scale(features)
        if not rows.shape[1]:
            return cls(scale, np.zeros((0, 0)))
        if rows.shape[1] <= min(len(rows), directions or len(rows)):
            return cls(scale, np.eye(rows.shape[1]) / np.sqrt(rows.shape[1]))
        narrow = rows.T @ rows if rows.shape[1] <= len(rows) else rows @ rows.T
        energies, vectors = np.linalg.eigh(narrow)
        kept = (energies > energies[-1] * 1e-10).nonzero()[0][::-1][:directions]
        basis = vectors[:, kept]
        if rows.shape[1] > len(rows):
            basis = rows.T @ basis / np.sqrt(energies[kept])
        return cls(scale, basis / np.sqrt(rows.shape[1]))

    def __call__(self, features: Features) -> FloatArray:
        """(rows, directions)."""
        return np.asarray(self.scale(features) @ self.basis)
