"""Tests of vectors as inputs of a linear map, from the span of the map's gradient.

The gradient of a linear map that is used at T positions is G = Σ_t δ_t a_tᵀ, so its rows lie in the
span of what came in, and where T is less than the map is wide, they leave the rest of the space
empty (Petrov et al. 2024, DAGER, theorem 3.1). How much of a candidate lies outside shows whether
it came in.

Where noise blurs the span, a right singular vector that is found with singular value s keeps the
share cos² of its energy in the true span that the theory of spiked matrices gives (Benaych-Georges
and Nadakuditi 2012), and counts by it: the energy outside is ‖a‖² − Σ_i cos²_i ⟨v_i, a⟩². The noise
level is read from the singular values that T positions cannot make, never from a fixed tolerance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

_SPARE = 8
"""Singular values that only noise makes: its level is estimated from so many or more."""
_ROUNDING = 1e-10
"""The level of noise, over the largest singular value, where no value is free to show it."""
_GAP = 1.2
"""What the smallest singular value of what came in must be over noise, or some of it is lost."""
_MARGIN = 2.0
"""What the largest singular value of noise is taken to be, over its law's: rounding has tails."""
_LAW = 1.05
"""Largest ratio of the first singular value of Gaussian noise to that of its law."""
_SINGLE = 1e-6
"""Rounding of gradients in single precision, over the largest singular value (measured: 1e-8)."""
_TAIL = 8.0
"""How far over this they reach at most (measured: 4.1), where texts share tokens at positions, so
that fewer dimensions than positions are filled,"""
_FALL = 300.0
"""and how far below what came in they then lie at least (measured: 7,000)."""

_STRONGEST = 0.75
"""Share of the dimensions of a full space that are kept for what came in: of texts of 48 words in
48 dimensions ROUGE-2 was .82, .73 and .78 with .6, .75 and .85; of tied tables .34, .38 and .36."""


@dataclass(frozen=True)
class Span:
    """The span of the inputs of linear maps that have the same input.

    Attributes:
        rows: (rank, width) orthonormal.
        kept: (rank,) which share of each row's energy is in the true span.
        edge: the largest singular value that noise makes.
        values: singular values, falling.
        whole: whether the maps have outputs enough for the span to hold all that came in; else
            what came in has more of its energy in it than chance, and no more can be said.
    """

    rows: Tensor
    kept: Tensor
    edge: float
    values: Tensor
    whole: bool = True

    @classmethod
    def of(cls, gradients: Sequence[Tensor], tokens: int) -> Self | None:
        """Compute the span from gradients (out, width) of maps with one input; None if void.

        It says nothing of positions that may fill the whole space ("void").

        Args:
            gradients: of maps that share what comes in, (out, width) each.
            tokens: how many positions there are at most.
        """
        if is_void(gradients[0].shape[1], tokens) or not any(bool(g.any()) for g in gradients):
            return None
        stacked = torch.cat(list(gradients)).double()
        values, rows = _right_singular(stacked)
        shape = stacked.shape[0], stacked.shape[1]
        whole = shape[0] - tokens >= _SPARE
        level = noise_level(values, tokens, shape) if whole else _ROUNDING * float(values[0])
        edge = _MARGIN * level * (shape[0] ** 0.5 + shape[1] ** 0.5)
        rank = _rank(values[:tokens], edge)
        kept = alignment(values[:rank], level, shape)
        return cls(rows[:rank].float(), kept, edge, values, whole)

    @classmethod
    def strongest(cls, gradients: Sequence[Tensor], tokens: int) -> Self | None:
        """Keep the strongest directions of a space that positions may fill; None without any.

        What came in has more of its energy in them than chance, and no more can be said.
        """
        stacked = torch.cat(list(gradients)).double()
        values, rows = _right_singular(stacked)
        some = int((values > _ROUNDING**0.5 * values[0]).sum())
        rank = min(some, tokens, int(_STRONGEST * stacked.shape[1]))
        if not rank:
            return None
        return cls(rows[:rank].float(), torch.ones(rank), math.inf, values, whole=False)

    @property
    def rank(self) -> int:
        """Rank of the span, above the noise."""
        return len(self.rows)

    @property
    def clear(self) -> bool:
        """Whether the span contains all inputs, with a gap between their energy and the noise."""
        last = float(self.values[self.rank - 1]) if self.rank else 0.0
        return self.whole and last > _GAP * self.edge

    def leaves_noise(self, tokens: int) -> bool:
        """Whether no singular value behind those of so many tokens is above noise or rounding."""
        most = max(_LAW * self.edge / _MARGIN, _SINGLE * float(self.values[0]))
        return bool((self.values[tokens : tokens + 1] <= most).all())

    def energy(self, vectors: Tensor) -> Tensor:
        """Compute the share of each vector's energy outside the span: (…, width) to (…,)."""
        outside, blurred = self._parts(vectors)
        return outside + blurred

    def misfit(self, vectors: Tensor) -> Tensor:
        """Compute the energy outside the span over that which noise gives a true input, (…,).

        It is about one of what came in, where the noise leaves the span whole.
        """
        outside, blurred = self._parts(vectors)
        return outside / (blurred + torch.finfo(vectors.dtype).eps ** 2)

    def residual(self, vectors: Tensor) -> Tensor:
        """Part of vectors (…, width) that lies outside the span."""
        rows = self.rows.to(vectors)
        return vectors - vectors @ rows.T @ rows

    def _parts(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Split energy into the shares outside of the found rows, and within but off the span."""
        rows, blur = self.rows.to(vectors), (1 - self.kept).to(vectors)
        lengths = vectors.square().sum(dim=-1)
        lengths = torch.where(lengths > 0, lengths, 1)
        along = vectors @ rows.T
        outside = (vectors - along @ rows).square().sum(dim=-1)
        return outside / lengths, (along.square() @ blur) / lengths


def span_check(gradient: ArrayLike | Tensor, vectors: ArrayLike | Tensor, tokens: int) -> Tensor:
    """Check by a linear map's gradient whether vectors were its inputs.

    ‖a − P a‖²/‖a‖² with P the projection on the rows' span of G = Σ_t δ_t a_tᵀ: zero, but for noise
    and rounding, of what came in (Petrov et al. 2024, DAGER, theorem 3.1).

    >>> inputs, deltas = torch.eye(20)[:2], torch.randn(30, 2, generator=torch.manual_seed(0))
    >>> (span_check(deltas @ inputs, torch.eye(20)[:3], tokens=2) < 1e-6).tolist()
    [True, True, False]

    Args:
        gradient: G of the map's weight, (out, width).
        vectors: (…, width).
        tokens: positions behind the gradient, at most.

    Raises:
        ValueError: so many positions may fill the whole space ("void").
    """
    span = Span.of([torch.as_tensor(gradient)], tokens)
    if span is None:
        raise ValueError("span_check needs a gradient, and fewer tokens than the width less 8")
    return span.energy(torch.as_tensor(vectors))


def _rank(values: Tensor, edge: float) -> int:
    """Count singular values above noise; those near its edge and far below others are noise."""
    rank, above = int((values > edge).sum()), int((values > _TAIL * edge).sum())
    falls = 0 < above < rank and bool(values[above - 1] > _FALL * values[above])
    return above if falls else rank


def _right_singular(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, falling, and right singular vectors (k, width), by the smaller Gram matrix.

    In float64 that resolves singular values down to 1e-8 of the largest, as gradients in float32
    themselves do, in a fraction of the time of a decomposition of the matrix.
    """
    wide = matrix.shape[1] > matrix.shape[0]
    squares, vectors = torch.linalg.eigh(matrix @ matrix.T if wide else matrix.T @ matrix)
    values, vectors = squares.clamp(min=0).sqrt().flip(0), vectors.flip(1)
    rows = vectors.T
    if wide:
        rows = rows @ matrix / values.clamp(min=torch.finfo(values.dtype).tiny)[:, None]
    return values, rows


def is_void(width: int, tokens: int) -> bool:
    """Whether positions may fill a space of this width, so that every vector fits the span."""
    return tokens > most_tokens(width)


def most_tokens(width: int) -> int:
    """Largest number of positions that leave enough of a space of this width free for a test."""
    return width - _SPARE


def noise_level(values: Tensor, tokens: int, shape: tuple[int, int]) -> float:
    """Standard deviation of an element's noise, from the singular values behind the first tokens.

    These are noise in what the tokens leave of the space, whose median singular value is that of
    the law of Marchenko and Pastur.

    Args:
        values: (k,) singular values of the gradient, falling.
        tokens: how many of them are not noise alone, at most.
        shape: of the gradient.
    """
    rest = values[tokens:]
    if len(rest) < 1:
        return 0.0
    long = max(shape) - tokens
    return float(rest.median()) / math.sqrt(long * _median(len(rest) / long))


def _median(ratio: float) -> float:
    """Median of Marchenko and Pastur's law of variance 1 with this ratio of dimensions, up to 1."""
    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    x = np.linspace(low, high, 4_001)[1:-1]
    density = np.sqrt((high - x) * (x - low)) / x
    mass = density.cumsum()
    return float(x[np.searchsorted(mass, mass[-1] / 2)])


def alignment(values: Tensor, level: float, shape: tuple[int, int]) -> Tensor:
    """cos² between right singular vectors that were found and true ones, (k,).

    For a signal x in noise of variance 1/n the value found is y² = (x² + 1)(x² + β)/x², with
    β = m/n ≤ 1; the vector of the long side has cos² = (x⁴ − β)/(x⁴ + x²), that of the short one
    (x⁴ − β)/(x⁴ + βx²) (Benaych-Georges and Nadakuditi 2012).
    """
    if level == 0:
        return torch.ones_like(values)
    rows, columns = shape
    ratio = min(shape) / max(shape)
    y = (values / (level * max(shape) ** 0.5)).square()
    middle = y - ratio - 1
    x = (middle + (middle.square() - 4 * ratio).clamp(min=0).sqrt()) / 2
    spread = 1.0 if columns >= rows else ratio
    kept: Tensor = ((x.square() - ratio) / (x.square() + spread * x)).clamp(0, 1)
    return kept
