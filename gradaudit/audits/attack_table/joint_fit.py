"""Rows behind noise, whose numbers are fitted together to the whole update.

A row that is taken out with numbers that are a little off leaves a trace, which the rows that are
found after it bend to. So the numbers of all rows move (Gauss and Newton) until the sum of their
gradients is as near to the update as may be. Gradients jump where a unit goes on or off, and the
descent stops there, so that numbers are also tried one by one at distances of up to a deviation.
Where what is left is noise alone, the rows are the batch: its variance gives each number its
standard error, and says by how many variances another row in a row's place explains less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from scipy.special import chdtrc
from torch import Tensor
from torch.autograd import forward_ad

from gradaudit.audits.attack_table.structure import TwoLayers, bias_of

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import Update
    from gradaudit.audits.attack_table.terms import GradientTerms

_STEPS = 12
_SHARES = 1.0, 0.3, 0.1
"""Of a step, each tried where the one before leads astray."""
_JUMPS = tuple(sign * 10 ** (-2 + place / 6) for sign in (-1, 1) for place in range(13))
"""Deviations by which a number is tried elsewhere."""
_SWEEPS = 6
_FAR = 20.0
"""What is left over noise of its size, from which on it is not by jumps that it is too much: 5 to 7
where numbers are off, and 100 where one of 32 rows is wrong."""
_SLIGHT = 1e-6
_LESS = 1e-3
"""The share of the squares by which a jump must lower them, and a known value may raise them."""
_LARGEST = 250_000_000
"""Elements of the derivative that are held at most (2 GB)."""
NEAR = 1e3
"""Variances by which squares must grow with any other row in the place of one that is certified."""
_SLACK = 1.1
"""The largest singular value of noise is taken to be at most so many times that of its law."""
_ERRORS = 12.0
"""Standard errors that a number is said to be off at most, and within which it is moved to a known
value. Of 9 batches of 32 rows and 20 of 8 behind noise of 1e-3 of the rms the farthest of 1,752
numbers was off by 3.4; of 4,800 behind noise of 1e-6 to 1e-3 two were by 6 and 9: gradients jump
where a ReLU begins, and the fit stops beside it.
"""
_CHANCE = 1e-3
"""How likely what is left of each parameter must be under the law of noise for numbers to be told.
Two of 32 rows with wrong numbers left twice as much of the last layer as noise does.
"""


@dataclass(frozen=True)
class JointFit:
    """Rows whose gradients are to add up to an update.

    Attributes:
        layers: what the model begins with.
        terms: gives rows' gradients.
        update: of the whole batch.
        cells: (rows, cells).
        labels, times: (rows,), how often each row is in the batch.
        parts: (rows, elements) each row's share of the update.
    """

    layers: TwoLayers
    terms: GradientTerms
    update: Update
    cells: Tensor
    labels: Tensor
    times: Tensor
    parts: Tensor

    @classmethod
    def of(
        cls,
        layers: TwoLayers,
        terms: GradientTerms,
        cells: Tensor,
        labels: Tensor,
        times: Tensor,
    ) -> JointFit:
        """The rows as they are."""
        made = cls(layers, terms, dict(terms.view.update), cells, labels, times, cells)
        return made._at(cells)

    @property
    def residual(self) -> Tensor:
        """The update less the gradients of the rows, (elements,)."""
        whole = torch.cat([part.flatten() for part in self.update.values()])
        return whole - self.parts.sum(dim=0)

    @property
    def left(self) -> Update:
        """The residual by parameter, each in the parameter's shape."""
        sizes = [part.numel() for part in self.update.values()]
        pairs = zip(self.update.items(), torch.split(self.residual, sizes), strict=True)
        return {name: rest.reshape(part.shape) for (name, part), rest in pairs}

    @property
    def variance(self) -> float:
        """The noise's variance by element, if the residual is nothing but noise."""
        freedom = self.parts.shape[1] - len(self.cells) * len(self.terms.columns.numeric)
        return float(self.residual.square().sum()) / max(1, freedom)

    @property
    def is_noise(self) -> bool:
        """Whether what is left has no singular value above what noise of its rms makes.

        It is looked at in the gradients of both layers.
        """
        left = self.left
        for name in filter(None, (self.layers.first, self.layers.second)):
            matrix = torch.cat([left[name], left[bias_of(name)][:, None]], dim=1)
            outputs, inputs = matrix.shape
            law = float(matrix.square().mean().sqrt()) * (outputs**0.5 + inputs**0.5)
            if float(torch.linalg.matrix_norm(matrix, 2)) > _SLACK * law:
                return False
        return True

    @property
    def tells_numbers(self) -> bool:
        """Whether no parameter has more left than noise of one level does, by a chi-square test.

        Rows with wrong numbers may leave a trace in the last layers alone, which hold few elements.
        """
        squares = ((part.numel(), float(part.square().sum())) for part in self.left.values())
        level = max(self.variance, torch.finfo(self.cells.dtype).tiny)
        return all(bool(chdtrc(count, square / level) > _CHANCE) for count, square in squares)

    @property
    def fits_memory(self) -> bool:
        """Whether the derivative by all numbers can be held."""
        return self.parts.numel() * max(1, len(self.terms.columns.numeric)) <= _LARGEST

    def settled(self, noise: float) -> tuple[JointFit, Tensor]:
        """The rows with their numbers fitted, and how far these may be off if noise is left.

        The latter is (rows, numbers), in deviations; infinite where more than noise is left. A
        number that may be but one value of its column's known ones is moved to it. Numbers jump
        where no more is left than if a row were missing; also where it seems to be noise, which two
        rows of equal categories may hide in.
        """
        fit, inverse = self._descended()
        far = _FAR * noise * math.sqrt(self.parts.shape[1])
        for _ in range(_SWEEPS if float(fit.residual.norm()) < far else 0):
            before = fit
            fit = before._jumped()
            if fit is before:
                break
            fit, inverse = fit._descended()
        errors = (fit.variance * inverse.diagonal().clamp(min=0)).sqrt()
        fit, spread = fit._at_known(_ERRORS * errors.reshape(len(self.cells), -1))
        return fit, spread if fit.tells_numbers else torch.full_like(spread, torch.inf)

    def proves(self, row: int) -> bool:
        """Whether neither another category in one column nor another label comes near a row."""
        cells, label = self.cells[row], self.labels[row]
        others = self.terms.targets[self.terms.targets != label].to(label)
        rows = torch.cat([self.terms.columns.every_swap(cells), cells.expand(len(others), -1)])
        labels = torch.cat([label.expand(len(rows) - len(others)), others])
        return bool((self.growth(row, rows, labels) > NEAR).all())

    def growth(self, row: int, others: Tensor, labels: Tensor) -> Tensor:
        """Compute the growth of the sum of squares when other rows take a row's place, (others,).

        In variances of the noise, for other rows (others, cells), with the remaining numbers moved
        to the first order.
        """
        slopes = self._slopes(slice(row, row + 1))
        change = self._made(others, labels, self.times[row].expand(len(others))) - self.parts[row]
        basis = torch.linalg.qr(slopes.T).Q
        change = change - change @ basis @ basis.T
        grown: Tensor = change.square().sum(dim=1) - 2 * change @ self.residual
        return grown / max(self.variance, torch.finfo(grown.dtype).tiny)

    def _at(self, cells: Tensor) -> JointFit:
        return replace(self, cells=cells, parts=self._made(cells, self.labels, self.times))

    def _made(self, cells: Tensor, labels: Tensor, times: Tensor) -> Tensor:
        """Shares of the update that rows make, (rows, elements)."""
        parts = self.terms.gradients(cells, labels, tuple(self.update))
        flat = torch.cat([part.flatten(1) for part in parts.values()], dim=1)
        return flat * self.terms.shares(labels, times)[:, None]

    def _slopes(self, rows: slice) -> Tensor:
        """The derivatives of rows' shares by each of their numbers, (rows · numbers, elements)."""
        cells, labels, times = self.cells[rows], self.labels[rows], self.times[rows]
        numbers = self.terms.columns.numeric
        if not len(numbers):
            return self.parts[:0]

        def made(moved: Tensor) -> Tensor:
            return self._made(moved, labels, times)

        ways = torch.eye(cells.shape[1]).to(cells)[numbers]
        slopes = [_slope(made, cells, way) for way in ways]
        return torch.stack(slopes, dim=1).flatten(0, 1)

    def _descended(self) -> tuple[JointFit, Tensor]:
        """The fit after Gauss and Newton's steps, and the inverse of the normal matrix."""
        numbers, bounds = self.terms.columns.numeric, self.terms.columns.bounds
        fit, inverse = self, self.parts.new_zeros(0, 0)
        for _ in range(_STEPS if len(numbers) else 0):
            slope = fit._slopes(slice(None))
            inverse = torch.linalg.pinv(slope @ slope.T, rtol=1e-12, hermitian=True)
            step = (inverse @ (slope @ fit.residual)).reshape(len(fit.cells), -1)
            for share in _SHARES:
                cells = fit.cells.clone()
                cells[:, numbers] = (cells[:, numbers] + share * step).clamp(*bounds)
                moved = fit._at(cells)
                if float(moved.residual.norm()) < (1 - _SLIGHT) * float(fit.residual.norm()):
                    break
            else:
                break
            fit = moved
        return fit, inverse

    def _at_known(self, spread: Tensor) -> tuple[JointFit, Tensor]:
        """Rows whose numbers may be but one value of their column's known ones, moved to it.

        The precision (rows, numbers) grows by as much as a number is moved. A row stays where it
        explains the update less well elsewhere, as beside a jump of the gradient.
        """
        columns, cells = self.terms.columns, self.cells
        moved, numbers = columns.as_known(cells), columns.numeric
        pairs = zip(numbers.tolist(), columns.values, strict=True)
        for place, (number, values) in enumerate(pairs):
            ends = [cells[:, number] + sign * spread[:, place] for sign in (-1, 1)]
            low, high = (torch.searchsorted(values, end.contiguous()) for end in ends)
            moved[:, number] = torch.where(high - low == 1, moved[:, number], cells[:, number])
        residual, there = self.residual, self._at(moved)
        squares = (residual + self.parts - there.parts).square().sum(dim=1)
        good = squares <= (1 + _LESS) * residual.square().sum()
        moved = torch.where(good[:, None], moved, cells)
        parts = torch.where(good[:, None], there.parts, self.parts)
        return replace(self, cells=moved, parts=parts), spread + (moved - cells)[:, numbers].abs()

    def _jumped(self) -> JointFit:
        """The fit with one number of one row elsewhere, where that explains most; else itself."""
        numbers, bounds = self.terms.columns.numeric, self.terms.columns.bounds
        jumps, residual, best = torch.tensor(_JUMPS).to(self.cells), self.residual, self
        least = (1 - _LESS) * float(residual.square().sum())
        for row in range(len(self.cells) if len(numbers) else 0):
            tried = self.cells[row].repeat(len(numbers), len(jumps), 1)
            for place, number in enumerate(numbers.tolist()):
                tried[place, :, number] += jumps
            tried[..., numbers] = tried[..., numbers].clamp(*bounds)
            tried = tried.flatten(0, 1)
            again = (part[row].expand(len(tried)) for part in (self.labels, self.times))
            made = self._made(tried, *again)
            squares = (residual + self.parts[row] - made).square().sum(dim=1)
            place = int(squares.argmin())
            if float(squares[place]) < least:
                least, cells, parts = float(squares[place]), self.cells.clone(), self.parts.clone()
                cells[row], parts[row] = tried[place], made[place]
                best = replace(self, cells=cells, parts=parts)
        return best


def _slope(made: Callable[[Tensor], Tensor], cells: Tensor, way: Tensor) -> Tensor:
    """The derivative of what is made of rows along a way, of plain autograd in forward mode.

    ``torch.func`` would differentiate as well, but loads the compiler.
    """
    with forward_ad.dual_level():
        moved = forward_ad.make_dual(cells, way.expand_as(cells))  # type: ignore[no-untyped-call]
        slope: Tensor = forward_ad.unpack_dual(made(moved)).tangent  # type: ignore[no-untyped-call]
        return slope
