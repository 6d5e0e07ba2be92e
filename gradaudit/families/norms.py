"""A forest on how large a gradient is, and where and how unevenly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradaudit.families.base import (
    Above,
    Features,
    Fitted,
    FloatArray,
    Standardised,
    Training,
)
from gradaudit.families.forest import TREES, Forest

BLOCKS = 32
"""Parts of a gradient whose norms are told: of a dense layer, some neighbouring units each."""

_IN_CACHE = 1 << 16
"""Elements that are worked on at a time."""


def norms(gradients: Features) -> FloatArray:
    """Logarithms of norms of gradients, (rows, elements) to (rows, 5 + blocks).

    The first is ln‖g‖₂; the others do not change with it: ln‖g‖₁, ln‖g‖₄ and ln‖g‖_∞ less
    ln‖g‖₂, the share of elements that are zero, and ln‖g_b‖₂ less ln‖g‖₂ of each block g_b of
    neighbouring elements. A norm of zero counts as the smallest number above zero.
    """
    rows, width = gradients.shape
    step = max(1, _IN_CACHE // max(width, 1))
    parts = [_norms(gradients[start : start + step]) for start in range(0, rows, step)]
    return np.concatenate(parts)


def _norms(gradients: Features) -> FloatArray:
    """Of so few rows that they stay in the cache."""
    width = gradients.shape[1]
    tiny = float(np.finfo(gradients.dtype).tiny)
    sizes = np.abs(gradients)
    largest = np.maximum(sizes.max(axis=1, keepdims=True, initial=0), tiny)
    sizes /= largest
    squares = sizes**2
    starts = np.linspace(0, width, min(BLOCKS, width), endpoint=False).astype(np.int64)
    blocks = np.add.reduceat(squares, starts, axis=1, dtype=np.float64)
    length = np.log(blocks.sum(axis=1, keepdims=True) + tiny) / 2
    relative = (
        np.log(sizes.sum(axis=1, keepdims=True, dtype=np.float64) + tiny),
        np.log(np.einsum("ij,ij->i", squares, squares)[:, None] + tiny) / 4,
        np.zeros_like(length),
        np.log(blocks + tiny) / 2,
    )
    zero = (sizes == 0).mean(axis=1, keepdims=True)
    return np.hstack([length + np.log(largest), *(each - length for each in relative), zero])


@dataclass(frozen=True)
class FittedNorms(Fitted):
    """A forest that is shown the norms."""

    member: Fitted

    @property
    def prior(self) -> FloatArray:  # type: ignore[override]
        """The forest's."""
        return self.member.prior

    def log_probabilities(self, features: Features) -> FloatArray:
        """Log-probabilities from the gradients' norms, (rows, classes)."""
        return self.member.log_probabilities(norms(features))


class Norms(Forest):
    """Fifty trees on norms of the gradient, which show a scale that no single element shows.

    The trees are those of the forest on elements (Mo et al. 2021, section 4.2). Records whose
    inputs are larger, or have fewer entries that are not zero, give gradients that are larger or
    sparser with both signs: a linear reader has nothing to go by, and a tree of single elements
    needs many cuts. Norms are few, so this forest is cheap. In ``benchmarks/coverage/plants.py`` a
    quick scan shows 28 of 28 planted attributes with it beside logistic regression, and none of 30
    coins.
    """

    name = "norms"
    summary = "Forest of 50 trees on norms of the gradient and of 32 parts of it."
    size = f"{TREES} trees of norms"

    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
        return FittedNorms(super()._fit(_shown(training), generator))

    def fit_ordered(self, training: Training, generator: np.random.Generator) -> Above:
        """The forest's, on norms."""
        above = super().fit_ordered(_shown(training), generator)
        return lambda features: above(norms(features))

    def seconds(self, rows: int, features: int) -> float:
        """One pass over the elements, and a forest of few columns."""
        return super().seconds(rows, min(BLOCKS, features) + 5) + 1e-8 * rows * features


def _shown(training: Training) -> Training:
    """The same rows as norms."""
    return replace(training, rows=Standardised(norms(training.features)))
