"""From points of a search to rows polished on both spans, and decoys on which the test is tried.

A row is certified where its residual is less than a tenth of the least of decoys' in the spans that
it was found in, and its multiplicity is a whole number; of a rounded or noisy update this number
is one where there are numeric columns, for two rows of alike numbers look like one that is there
twice. Behind noise the named rows must also leave nothing but noise of the whole update, or none is
certified: the gradient of a row that is not found moves the numbers of those that are. Fresh decoys
then take the whole test: with none of n certified, the false rate is at most 1 − .025^(1/n)
(Clopper and Pearson 1934).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.spans import GradientRowSpace
from gradaudit.audits.attack_table.structure import TwoLayers

_NEAR = 0.05
"""The residual up to which a point is worth rounding."""
_MOST = 64
_TENTH = 0.1
_DECOYS = 128
"""Decoys that set a limit."""
_STEPS = 4
_GROWN, _NOTHING = 1.5, 1e-9
"""A residual that rounding makes of another, up to which the numbers are taken for round."""
_SPREAD = 30.0
"""Standard errors that a number is said to be off at most. Spans that rounding tilts err alike at
all equations: of 8,100 numbers of trained models in single precision the farthest was off by 20."""


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
        residuals: Tensor = torch.linalg.vector_norm(self._outside(cells)[0], dim=1)
        return residuals

    def polished(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Rows with their numbers moved by Gauss and Newton, and their residuals.

        Numbers stay near the range of the column, and are rounded to single precision and to the
        nearest number that is known of the column where the residual hardly grows by that.
        """
        numbers = self.columns.numeric
        cells = cells.clone()
        if len(numbers) and len(cells):
            for _ in range(_STEPS):
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
        scale = torch.linalg.vector_norm(outside, dim=1) / freedom**0.5
        inverse = torch.linalg.vector_norm(torch.linalg.pinv(jacobian), dim=2)
        spreads: Tensor = _SPREAD * scale[:, None] * inverse
        return spreads

    def _outside(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """The residuals (rows, equations) and their derivative by the numbers."""
        entered = self.layers.entered(cells)
        by_number = self.layers.entry[:, self.columns.numeric]
        length = (entered.square().sum(1) + 1).sqrt()[:, None, None]
        parts = [self.first.outside(entered)]
        slopes = [self.first.rest[:, :-1] @ by_number / length]
        if self.second is not None:
            before = entered @ self.layers.weight.T + self.layers.bias
            hidden = self.layers.value(before)
            parts.append(self.second.outside(hidden))
            inner = self.layers.slope(before)[:, :, None] * (self.layers.weight @ by_number)
            length = (hidden.square().sum(1) + 1).sqrt()[:, None, None]
            slopes.append(self.second.rest[:, :-1] @ inner / length)
        return torch.cat(parts, dim=1), torch.cat(slopes, dim=1)

    def candidates(self, cells: Tensor, residual: Tensor) -> Tensor:
        """The best points of a search, rounded to categories, without those that are alike."""
        order = residual.argsort()
        order = order[residual[order] < _NEAR]
        rounded = self.columns.rounded(cells[order])
        return rounded[self.columns.first_of_each(rounded, decimals=1)][:_MOST]


def decoys_of(
    test: SpanTest, rows: Tensor, named: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Polished decoys and their residuals, without those that come to be a named row.

    Three of four are rows with a category swapped, the others records of the attacker's own; their
    numbers are polished as a candidate's are.

    Args:
        test: the spans.
        rows: (rows, cells) that are swapped.
        named: (rows, cells) that are in the batch as far as anybody knows.
        count: how many decoys there are at most.
        generator: of which.

    Returns:
        (decoys, cells) and (decoys,).
    """
    columns = test.columns
    others = torch.randint(len(columns.known), (-(-count // 4),), generator=generator)
    drawn = swapped(columns, rows, count - len(others), generator)
    cells, residual = test.polished(torch.cat([drawn, columns.known[others]]))
    kept = ~columns.alike(cells, named).any(dim=1)
    return cells[kept], residual[kept]


def limit_of(
    test: SpanTest, rows: Tensor, generator: torch.Generator, named: Tensor | None = None
) -> float:
    """A tenth of the least residual of decoys; 0 without any."""
    residual = decoys_of(test, rows, rows if named is None else named, _DECOYS, generator)[1]
    return _TENTH * float(residual.min()) if len(residual) else 0.0


def swapped(columns: TableColumns, cells: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows with one category swapped for another of its column, (decoys, cells)."""
    several = [group for group in columns.groups if len(group) > 1]
    if not several or not len(cells):
        return cells[:0]
    decoys = cells[torch.randint(len(cells), (count,), generator=generator)].clone()
    which = torch.randint(len(several), (count,), generator=generator)
    for place, group in enumerate(several):
        rows = (which == place).nonzero()[:, 0]
        step = torch.randint(1, len(group), (len(rows),), generator=generator)
        other = (decoys[rows][:, group].argmax(dim=1) + step) % len(group)
        decoys[rows[:, None], group] = 0
        decoys[rows, group[other]] = 1
    return decoys
