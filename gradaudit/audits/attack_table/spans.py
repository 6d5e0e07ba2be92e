"""The row spaces of both layers' gradients, and rows that are tested and polished in them.

The gradient [dW | db] = Σ_i δ_i [a_i; 1]ᵀ of a fully connected layer has its rows in the span of
what came in, so that a record can be tested alone: [a; 1] lies in the row space where it was in the
batch, as long as the δ_i are linearly independent (Petrov et al. 2024, DAGER, theorem 3.1).
Singular values below the level of rounding and noise are no part of a row space.

A row is certified where its residual is less than a tenth of the least of decoys' in the spans that
it was found in, and its multiplicity is a whole number; of a rounded update this number is one
where there are numeric columns, for two rows of alike numbers look like one that is there twice.
Behind noise no row is certified. Fresh decoys then take the whole test; with none of n certified,
the false rate is at most 1 − .025^(1/n) (Clopper and Pearson 1934).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.structure import TwoLayers
from gradaudit.audits.attack_text.span import noise_level

_LEVELS = ((torch.bfloat16, 1e-2), (torch.float16, 1e-3), (torch.float32, 2e-7))
"""Singular values, over the largest, that rounding to a type leaves."""
_DOUBLE = 1e-13
_NOISE = 30.0
"""Deviation of an element over the rounding of the largest, from which on it is taken for noise."""
_WHOLE = 1e5
"""How far rounding moves multiplicities, over its level (measured of rows that are there: 7e-4 in
float32, 6e-15 in float64)."""
_EDGE = 1.05
"""The largest singular value of noise is taken to be so many times that of its law."""
_NEAR = 0.05
"""The residual up to which a point is worth rounding."""
_MOST = 64
_STEPS = 4
_GROWN, _NOTHING = 1.5, 1e-9
"""A residual that rounding makes of another, up to which the numbers are taken for round."""
_TENTH = 0.1
_DECOYS = 128
"""Decoys that set a limit."""
_SPREAD = 30.0
"""Standard errors that a number is said to be off at most. Spans that rounding tilts err alike at
all equations: of 8,100 numbers of trained models in single precision the farthest was off by 20."""


@dataclass(frozen=True)
class GradientRowSpace:
    """The row space of a layer's gradient.

    Attributes:
        left: (outputs, rank) left singular vectors.
        values: (rank,) singular values, falling.
        rows: (rank, inputs + 1) right singular vectors.
        rest: (inputs + 1 − rank, inputs + 1) an orthonormal basis of what is outside.
    """

    left: Tensor
    values: Tensor
    rows: Tensor
    rest: Tensor

    @classmethod
    def of(cls, matrix: Tensor, edge: float) -> Self:
        """The singular vectors whose values are above an edge."""
        left, values, right = torch.linalg.svd(matrix)
        rank = int((values > edge).sum())
        return cls(left[:, :rank], values[:rank], right[:rank], right[rank:])

    @property
    def rank(self) -> int:
        """Dimensions of the row space."""
        return len(self.values)

    def outside(self, vectors: Tensor) -> Tensor:
        """What of [a; 1] lies outside, over its length: (points, inputs + 1 − rank)."""
        extended = with_one(vectors)
        outside: Tensor = extended @ self.rest.T / extended.norm(dim=1, keepdim=True)
        return outside

    def misfit(self, vectors: Tensor, noise: float) -> Tensor:
        """The mean square outside over the variance that noise gives it, (points,).

        It is about 1 for a row of the batch, whatever the row: of [a; 1] = Mᵀw the row space of
        M + E leaves out Eᵀw to the first order, whose elements have the variance noise²‖w‖².
        """
        extended = with_one(vectors)
        weights = (extended @ self.rows.T / self.values).square().sum(dim=1)
        outside = (extended @ self.rest.T).square().mean(dim=1)
        misfit: Tensor = outside / (noise**2 * weights).clamp(min=torch.finfo(weights.dtype).tiny)
        return misfit

    def outside_columns(self, deltas: Tensor) -> Tensor:
        """The share of δ that lies outside the column space, (points,) of (points, outputs)."""
        missed = deltas - deltas @ self.left @ self.left.T
        length = deltas.norm(dim=1).clamp(min=torch.finfo(deltas.dtype).tiny)
        share: Tensor = missed.norm(dim=1) / length
        return share

    def coefficient(self, vectors: Tensor, deltas: Tensor) -> Tensor:
        """How often δ [a; 1]ᵀ is in the gradient: 1 / ([a; 1]ᵀ M⁺ δ), (points,).

        It is the c for which M − c δ [a; 1]ᵀ has a smaller rank (Wedderburn's rank reduction).
        """
        return 1 / ((with_one(vectors) @ self.rows.T / self.values) * (deltas @ self.left)).sum(1)

    def outside_without(self, vectors: Tensor, taken: Tensor, deltas: Tensor) -> Tensor:
        """What of [a; 1] lies outside the row space of M − δ [a'; 1]ᵀ, (terms, points).

        With [a'; 1] of length 1 = Vᵀα + ρe, e outside the row space of M, and δ = Ud the new row
        space is that of M and e without the direction (S⁻¹d, (1 − αᵀS⁻¹d)/ρ) in their basis.

        Args:
            vectors: (points, inputs).
            taken: (terms,) which of these is the a' that is taken out.
            deltas: (terms, outputs), in the column space.
        """
        extended = with_one(vectors)
        length = extended.norm(dim=1, keepdim=True)
        inside, outside = extended @ self.rows.T / length, self.outside(vectors)
        away = outside[taken].norm(dim=1, keepdim=True)
        away = away.clamp(min=torch.finfo(away.dtype).tiny)
        scaled = deltas @ self.left / self.values * length[taken]
        last = (1 - (inside[taken] * scaled).sum(dim=1, keepdim=True)) / away
        way = outside[taken] / away
        along = way @ outside.T
        length = torch.cat([scaled, last], dim=1).norm(dim=1, keepdim=True)
        lost = (scaled @ inside.T + last * along) / length
        rest: Tensor = outside - along[:, :, None] * way[:, None]
        return torch.hypot(rest.norm(dim=2), lost)


def with_one(vectors: Tensor) -> Tensor:
    """[a; 1] of vectors (points, inputs): (points, inputs + 1)."""
    return torch.cat([vectors, vectors.new_ones(len(vectors), 1)], dim=1)


@dataclass(frozen=True)
class Precision:
    """How exact an update is, told from its numbers.

    Attributes:
        edges: of both layers, below which singular values are rounding or noise.
        noise: standard deviation of the noise of both layers' elements.
        exact: whether it is of double precision without noise.
        noisy: whether there is noise beside rounding.
        accept: the residual up to which a row may be named, beside the limit that decoys set for an
            update that is not exact.
        whole: how far a multiplicity may be from a whole number.
    """

    edges: tuple[float, float]
    noise: tuple[float, float]
    exact: bool
    noisy: bool
    accept: float
    whole: float

    @classmethod
    def of(
        cls, update: Mapping[str, Tensor], matrices: Sequence[Tensor | None], records: int
    ) -> Self:
        """Of an update of so many records, with the matrices of both layers."""
        level = rounding(update)
        edges, noises, noisy = list[float](), list[float](), False
        for matrix in matrices:
            edge, noise = (0.0, 0.0) if matrix is None else edge_of(matrix, level, records)
            noisy |= matrix is not None and noise > _NOISE * level * float(matrix.abs().max())
            edges.append(edge)
            noises.append(noise)
        exact = level == _DOUBLE and not noisy
        whole = 0.3 if noisy else max(1e-6, _WHOLE * level)
        levels = (edges[0], edges[1]), (noises[0], noises[1])
        return cls(*levels, exact, noisy, 1e-8 if exact else 1.0, whole)


def rounding(update: Mapping[str, Tensor]) -> float:
    """The level of singular values, over the largest, that the update's rounding makes."""
    for dtype, level in _LEVELS:
        if all(torch.equal(part.to(dtype).to(part.dtype), part) for part in update.values()):
            return level
    return _DOUBLE


def edge_of(matrix: Tensor, level: float, records: int) -> tuple[float, float]:
    """Below which singular values are rounding or noise, and the standard deviation of the noise.

    What comes behind as many singular values as there are records is noise alone; ``level`` is that
    of ``rounding``.
    """
    values = torch.linalg.svdvals(matrix)
    outputs, inputs = matrix.shape
    noise = noise_level(values, records, (outputs, inputs)) if records < len(values) else 0.0
    law = _EDGE * noise * (math.sqrt(outputs) + math.sqrt(inputs))
    return max(level * float(values[0]), law), noise


@dataclass(frozen=True)
class SpanTest:
    """Both spans, in which rows are tested and their numbers polished.

    Attributes:
        layers: what the model begins with.
        columns: of the table.
        first, second: row spaces; a second is None where it tells nothing.
    """

    layers: TwoLayers
    columns: TableColumns
    first: GradientRowSpace
    second: GradientRowSpace | None

    def residuals(self, cells: Tensor) -> Tensor:
        """What of rows lies outside both spans, relative to their lengths, (rows,)."""
        residuals: Tensor = self._outside(cells)[0].norm(dim=1)
        return residuals

    def misfit(self, cells: Tensor, noise: Sequence[float]) -> Tensor:
        """The larger of both spaces' ``GradientRowSpace.misfit``, (rows,)."""
        first = self.first.misfit(self.layers.entered(cells), noise[0])
        if self.second is None:
            return first
        return torch.maximum(first, self.second.misfit(self.layers.hidden(cells), noise[1]))

    def candidates(self, cells: Tensor, residual: Tensor) -> Tensor:
        """The best points of a search, rounded to categories, without those that are alike."""
        order = residual.argsort()
        order = order[residual[order] < _NEAR]
        rounded = self.columns.rounded(cells[order])
        return rounded[self.columns.first_of_each(rounded, decimals=1)][:_MOST]

    def polished(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Rows with their numbers moved by Gauss and Newton, and their residuals.

        Numbers stay near the range of the column, and are rounded to single precision and to the
        nearest number that is known of the column where the residual hardly grows by that.
        """
        numbers = self.columns.numeric
        cells = cells.clone()
        for _ in range(_STEPS if len(numbers) and len(cells) else 0):
            outside, jacobian = self._outside(cells)
            step = torch.linalg.lstsq(jacobian, outside[:, :, None], driver="gelsd").solution
            moved = cells[:, numbers] - step[:, :, 0].nan_to_num(0.0)
            cells[:, numbers] = moved.clamp(*self.columns.bounds)
        residual = self.residuals(cells)
        for rounded in (self.columns.as_single(cells), self.columns.as_known(cells)):
            after = self.residuals(rounded)
            better = after <= (_GROWN * residual).clamp(min=_NOTHING)
            cells = torch.where(better[:, None], rounded, cells)
            residual = torch.where(better, after, residual)
        return cells, residual

    def spreads(self, cells: Tensor) -> Tensor:
        """How far each number may be off, in deviations: (rows, numbers).

        Thirty standard errors of the least squares that the residual leaves.
        """
        outside, jacobian = self._outside(cells)
        freedom = max(1, outside.shape[1] - jacobian.shape[2])
        scale = outside.norm(dim=1, keepdim=True) / freedom**0.5
        spreads: Tensor = _SPREAD * scale * torch.linalg.pinv(jacobian).norm(dim=2)
        return spreads

    def _outside(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """The residuals (rows, equations) and their derivative by the numbers."""
        by_number = self.layers.entry[:, self.columns.numeric]
        entered = self.layers.entered(cells)
        parts = [self.first.outside(entered)]
        slopes = [self.first.rest[:, :-1] @ by_number / _lengths(entered)]
        if self.second is not None:
            before = self.layers.before(cells)
            hidden = self.layers.value(before)
            parts.append(self.second.outside(hidden))
            inner = self.layers.slope(before)[:, :, None] * (self.layers.weight @ by_number)
            slopes.append(self.second.rest[:, :-1] @ inner / _lengths(hidden))
        return torch.cat(parts, dim=1), torch.cat(slopes, dim=1)


def _lengths(vectors: Tensor) -> Tensor:
    return (vectors.square().sum(dim=1) + 1).sqrt()[:, None, None]


def limit_of(
    test: SpanTest, rows: Tensor, generator: torch.Generator, named: Tensor | None = None
) -> float:
    """A tenth of the least residual of decoys of rows (rows, cells); 0 without any."""
    residual = decoys_of(test, rows, rows if named is None else named, _DECOYS, generator)[1]
    return _TENTH * float(residual.min()) if len(residual) else 0.0


def decoys_of(
    test: SpanTest, rows: Tensor, named: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """At most so many polished decoys (decoys, cells) and their residuals (decoys,).

    Three of four are rows with a category swapped, the others records of the attacker's own; their
    numbers are polished as a candidate's are. None comes to be a named row (named, cells), which
    is in the batch as far as anybody knows.
    """
    columns = test.columns
    others = torch.randint(len(columns.known), (-(-count // 4),), generator=generator)
    drawn = columns.swapped(rows, count - len(others), generator)
    cells, residual = test.polished(torch.cat([drawn, columns.known[others]]))
    kept = ~columns.alike(cells, named).any(dim=1)
    return cells[kept], residual[kept]
