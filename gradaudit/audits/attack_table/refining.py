"""The numbers of all named rows at once, by least squares against the whole update.

Behind noise a row that is taken out with numbers that are a little off leaves a trace, which the
rows that are found after it bend to. So the numbers of all rows move (Gauss and Newton) until
the sum of their gradients is as near to the update as may be. Where what is left is noise alone,
the rows are the batch, and the variance of the noise gives each number its standard error.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.base import Update
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.labels import RankOneLabels

Gradients = Callable[[Tensor], Tensor]
_STEPS = 12
_SHARES = 1.0, 0.3, 0.1
"""Of a step, each tried where the one before leads astray."""
_LARGEST = 250_000_000
"""Elements of the derivative that are held at most (2 GB)."""
_ERRORS = 12.0
"""Standard errors that a number is said to be off at most. Of 4,800 numbers behind noise of 1e-6 to
1e-3 two were off by 6 and 9: gradients jump where a ReLU begins, and the fit stops beside it."""


@dataclass(frozen=True)
class JointFit:
    """The rows of an update and what they leave of it.

    Attributes:
        cells: (rows, cells).
        spread: (rows, numbers) deviations that numbers may be off, if what is left is noise.
        left: of the update.
    """

    cells: Tensor
    spread: Tensor
    left: Update


def joint_fit(
    terms: RankOneLabels, update: Update, cells: Tensor, labels: Tensor, times: Tensor
) -> JointFit | None:
    """Fit the numbers of rows; None where there are too many for the memory.

    Args:
        terms: gives rows' gradients.
        update: of the whole batch.
        cells: (rows, cells) where to begin.
        labels: (rows,).
        times: (rows,) how often each is in the batch.
    """
    columns, names = terms.columns, tuple(update)
    whole = _flat(update, names, 0)
    size = len(cells) * len(columns.numeric) * len(whole)
    if size > _LARGEST or not len(cells):
        return None
    weight = (times / terms.view.batch)[:, None]

    def made(rows: Tensor) -> Tensor:
        return _flat(terms.gradients(rows, labels, names), names, 1) * weight

    residual = whole - made(cells).sum(dim=0)
    inverse = whole.new_zeros(0, 0)
    for _ in range(_STEPS if size else 0):
        slopes = _slopes(columns, made, cells)
        curvature, along = slopes @ slopes.T, slopes @ residual
        inverse = torch.linalg.pinv(curvature, rtol=1e-12, hermitian=True)
        step = (inverse @ along).reshape(len(cells), -1)
        for share in _SHARES:
            moved = cells.clone()
            moved[:, columns.numeric] += share * step
            moved[:, columns.numeric] = moved[:, columns.numeric].clamp(*columns.bounds)
            after = whole - made(moved).sum(dim=0)
            if float(after.norm()) < float(residual.norm()):
                break
        else:
            break
        cells, residual = moved, after
    freedom = len(whole) - len(cells) * len(columns.numeric)
    variance = inverse.diagonal().clamp(min=0) * residual.square().sum() / freedom
    spread = _ERRORS * variance.sqrt().reshape(len(cells), -1)
    cells, spread = _settled(columns, cells, spread)
    rest = whole - made(cells).sum(dim=0)
    parts = torch.split(rest, [update[name].numel() for name in names])
    left = {n: part.reshape(update[n].shape) for n, part in zip(names, parts, strict=True)}
    return JointFit(cells, spread, left)


def _settled(columns: TableColumns, cells: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers that may be but one value of their column's known ones, moved to it.

    The precision grows by as much as a number is moved.
    """
    moved = columns.as_known(cells)
    for place, values in enumerate(columns.values):
        number = columns.numeric[place]
        low = torch.searchsorted(values, (cells[:, number] - spread[:, place]).contiguous())
        high = torch.searchsorted(values, (cells[:, number] + spread[:, place]).contiguous())
        moved[:, number] = torch.where(high - low == 1, moved[:, number], cells[:, number])
    return moved, spread + (moved - cells)[:, columns.numeric].abs()


def _slopes(columns: TableColumns, made: Gradients, cells: Tensor) -> Tensor:
    """Derivatives of rows' gradients by each of their numbers, (rows · numbers, elements)."""
    parts = []
    for number in columns.numeric.tolist():
        along = torch.zeros_like(cells)
        along[:, number] = 1
        parts.append(torch.func.jvp(made, (cells,), (along,))[1])
    return torch.stack(parts, dim=1).flatten(0, 1)


def _flat(update: Update, names: tuple[str, ...], start: int) -> Tensor:
    return torch.cat([update[name].flatten(start) for name in names], dim=start)
