"""Features as classifiers like them: centred, of one scale, and no wider than the rows span."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Features = NDArray[np.floating]

_FLAT = 1e-6
"""A column that varies by less than this share of its largest entry is rounding, and constant."""
_IN_CACHE = 1 << 17
"""Numbers in double precision that are worked on at a time."""
_MATRICES = 3
"""Whose projections are known: fitted on, chosen on, scored on."""


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
        width = features.shape[1]
        unit, centre, deviation = np.ones((3, width))
        for block in _blocks(np.arange(width), len(features)):
            values = features[:, block].astype(np.float64)
            largest = np.abs(values).max(axis=0)
            unit[block] = np.where(largest > 0, largest, 1)
            values /= unit[block]
            centre[block] = values.mean(axis=0)
            deviation[block] = values.std(axis=0)
        kept = deviation > _FLAT
        return cls(kept, (centre * unit)[kept], (deviation * unit)[kept])

    def __call__(self, features: Features) -> FloatArray:
        """Rows in units of deviations, (rows, kept)."""
        values = features[:, self.kept].astype(np.float64)
        values -= self.centre
        values /= self.deviation
        return np.asarray(values)

    def columns(self, features: Features, read: IntArray | None = None) -> NDArray[np.float32]:
        """The same in single precision and column after column in memory, as trees read it.

        Args:
            features: (rows, features).
            read: those of the kept columns that are looked at; the others hold anything.
        """
        places = np.flatnonzero(self.kept)
        found = np.empty((len(features), len(places)), dtype=np.float32, order="F")
        for block in _blocks(np.arange(len(places)) if read is None else read, len(features)):
            values = features[:, places[block]].astype(np.float64)
            values -= self.centre[block]
            values /= self.deviation[block]
            found[:, block] = values
        return found


def _blocks(columns: IntArray, rows: int) -> Iterator[IntArray]:
    """Columns, as many at a time as go into the cache."""
    size = max(1, _IN_CACHE // max(rows, 1))
    return (columns[start : start + size] for start in range(0, len(columns), size))


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
    _known: list[tuple[Features, FloatArray]] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, features: Features, scale: Scale | None = None) -> Self:
        """Fit on rows (rows, features), whose scale may be known."""
        scale = scale or Scale.of(features)
        rows = scale(features)
        if not rows.shape[1]:
            return cls(scale, np.zeros((0, 0)))
        narrow = rows.T @ rows if rows.shape[1] <= len(rows) else rows @ rows.T
        energies, vectors = np.linalg.eigh(narrow)
        kept = (energies > energies[-1] * 1e-10).nonzero()[0][::-1]
        basis = vectors[:, kept]
        if rows.shape[1] > len(rows):
            basis = rows.T @ basis / np.sqrt(energies[kept])
        return cls(scale, basis / np.sqrt(rows.shape[1]))

    @staticmethod
    def seconds(rows: int, features: int) -> float:
        """About how long it takes to find one, on a core of a usual machine."""
        return rows * features * (1e-7 + 1e-10 * min(rows, features))

    def __call__(self, features: Features) -> FloatArray:
        """(rows, directions); of the last matrices it is known, as other families ask too."""
        for asked, found in self._known:
            if asked is features:
                return found
        found = np.asarray(self.scale(features) @ self.basis)
        self._known[:] = [*self._known[1 - _MATRICES :], (features, found)]
        return found
