"""A forest that reads the norms of a gradient and of its parts."""

from __future__ import annotations

import numpy as np

from gradaudit.families.base import Features, FloatArray
from gradaudit.families.forest import TREES, Forest

BLOCKS = 32
"""Number of parts of a gradient whose norms are features; of a dense layer, groups of units."""

_IN_CACHE = 1 << 16
"""Number of elements that are processed at a time."""


def norms(gradients: Features) -> FloatArray:
    """Returns logarithms of gradients' norms, (rows, elements) to (rows, 5 + blocks).

    The first is ln‖g‖₂; the others do not change with it: ln‖g‖₁, ln‖g‖₄ and ln‖g‖_∞ less
    ln‖g‖₂, the share of elements that are zero, and ln‖g_b‖₂ less ln‖g‖₂ of each block g_b of
    neighbouring elements. A norm of zero counts as the smallest number above zero.
    """
    rows, width = gradients.shape
    step = max(1, _IN_CACHE // max(width, 1))
    parts = [_norms(gradients[start : start + step]) for start in range(0, rows, step)]
    return np.concatenate(parts)


def _norms(gradients: Features) -> FloatArray:
    """Returns the norms of a block of rows that is small enough for the cache."""
    width = gradients.shape[1]
    tiny = float(np.finfo(gradients.dtype).tiny)
    sizes = np.abs(gradients)
    largest = np.maximum(sizes.max(axis=1, keepdims=True, initial=0), tiny)
    sizes /= largest
    squares = sizes**2
    starts = np.linspace(0, width, min(BLOCKS, width), endpoint=False).astype(np.int64)
    blocks = np.add.reduceat(squares, starts, axis=1).astype(np.float64)
    length = np.log(blocks.sum(axis=1, keepdims=True) + tiny) / 2
    relative = (
        np.log(sizes.sum(axis=1, keepdims=True).astype(np.float64) + tiny),
        np.log(np.einsum("ij,ij->i", squares, squares)[:, None] + tiny) / 4,
        np.zeros_like(length),
        np.log(blocks + tiny) / 2,
    )
    zero = np.zeros_like(length)
    if not sizes.min(initial=1):
        zero = 1 - np.count_nonzero(sizes, axis=1, keepdims=True) / width
    return np.hstack([length + np.log(largest), *(each - length for each in relative), zero])


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

    def reads(self, gradients: Features) -> Features:
        """Returns the gradients' norms, (rows, 5 + blocks), in single precision."""
        return norms(gradients).astype(np.float32)

    def seconds(self, rows: int, features: int) -> float:
        """Estimates the seconds: one pass over the elements, and a forest of few columns."""
        return super().seconds(rows, min(BLOCKS, features) + 5) + 1e-8 * rows * features
