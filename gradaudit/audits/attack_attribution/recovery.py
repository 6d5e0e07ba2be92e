"""Recovers rows from the first layer of summed updates, and groups them by client.

Rows belong to one client by the units that they share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from gradaudit.audits.attack_table.spans import rounding

_FEW = 64
"""Values of a column up to which it has a grid, and values of all columns together."""
_OFTEN = 4
"""Records for each value of a column's grid, at least."""
_SLACK, _COARSE = 50.0, 1e-3
"""Error of a quotient over the rounding of its unit, and the largest error that is of use."""
_SPARE = 8
"""Equations beyond the rows that a unit's update is a combination of, so that no chance fits it."""
_MOST = 64
"""Rows that one unit's update is a combination of at most, those that activate it the most."""
_UNITS = 64
_NEAR = 1e-4
"""Pre-activations, over the largest, from which on a row is surely on one side of a unit."""


@dataclass(frozen=True)
class RoundSum:
    """The sum of the first layer's updates in one round, with the weights that clients received.

    Attributes:
        weight, bias: (units, inputs), (units,) that the clients receive.
        update: (units, inputs + 1) mean of the clients' updates of both, side by side.
        error: (units,) how far rounding moves a quotient of the unit.
    """

    weight: Tensor
    bias: Tensor
    update: Tensor
    error: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, given: Sequence[Tensor]) -> Self:
        """Make the sum from the shared updates of the weight and the bias."""
        level = rounding({str(i): part for i, part in enumerate(given)})
        update = torch.cat([given[0], given[1][:, None]], dim=1).double()
        error = _SLACK * level * update.abs().amax() / update[:, -1].abs()
        return cls(weight.double(), bias.double(), update, error)

    def quotients(self) -> tuple[Tensor, Tensor]:
        """ΔW_j/Δb_j of the units that are precise enough, (units, inputs), and their errors."""
        fine = self.error < _COARSE
        return self.update[fine, :-1] / self.update[fine, -1:], self.error[fine]

    def active(self, rows: Tensor) -> Tensor:
        """Pre-activations of the units at the weights received, (rows, units)."""
        return rows @ self.weight.T + self.bias


@dataclass(frozen=True)
class ValueGrid:
    """The values that columns of records can have, as other records show them.

    Attributes:
        values: (columns, values), rising; the last is repeated in columns that have fewer.
        gridded: (columns,) whether a column has few values.
        low, high: (columns,) range of the others.
    """

    values: Tensor
    gridded: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, records: Tensor) -> Self:
        """Collect the values that occur in each column of records (records, columns)."""
        together = torch.unique(records)
        if len(together) <= _FEW:
            columns = [together] * records.shape[1]
        else:
            columns = [torch.unique(column) for column in records.T]
        few = torch.tensor([len(c) <= min(_FEW, len(records) / _OFTEN) for c in columns])
        kept = [c if f else c[:1] for c, f in zip(columns, few, strict=True)]
        width = max(map(len, kept))
        values = torch.stack([torch.cat([c, c[-1:].expand(width - len(c))]) for c in kept])
        return cls(values, few, records.amin(dim=0), records.amax(dim=0))

    @property
    def tells(self) -> bool:
        """Whether any column has so few values that a mean of rows can be recognised as no row."""
        return bool(self.gridded.any())

    def holds(self, rows: Tensor, errors: Tensor) -> Tensor:
        """Which rows (rows,) hold only values that occur in the columns, within their errors."""
        columns = rows.T.contiguous()
        place = torch.searchsorted(self.values, columns).clamp(1, self.values.shape[1] - 1)
        off = torch.minimum(
            (columns - self.values.gather(1, place - 1)).abs(),
            (columns - self.values.gather(1, place)).abs(),
        )
        beyond = torch.maximum(self.low[:, None] - columns, columns - self.high[:, None])
        return (torch.where(self.gridded[:, None], off, beyond) <= errors).all(dim=0)


def recovered(rounds: Sequence[RoundSum], grid: ValueGrid) -> Tensor:
    """The rows that the sums give away, (rows, inputs), none twice.

    Where no column has few values, a row has to be the quotient of units of two rounds: clients'
    rows are mixed by other shares in each.
    """
    found = [each.quotients() for each in rounds]
    rows, errors = (torch.cat(parts) for parts in zip(*found, strict=True))
    number = torch.cat([torch.full((len(x),), i) for i, (x, _) in enumerate(found)])
    if grid.tells:
        kept = grid.holds(rows, errors)
        rows, errors, number = rows[kept], errors[kept], number[kept]
    if not len(rows):
        return rows
    group = _alike(rows, errors)
    best = errors.new_full((int(group.max()) + 1,), torch.inf)
    best.scatter_reduce_(0, group, errors, "amin")
    seen = torch.zeros(len(best), len(rounds)).index_put_((group, number), torch.tensor(1.0))
    enough = torch.ones(len(best)).bool() if grid.tells else seen.sum(dim=1) > 1
    first = torch.zeros(len(best), dtype=torch.long)
    finest = errors == best[group]
    first[group[finest]] = torch.arange(len(rows))[finest]
    return rows[first[enough]]


def _alike(rows: Tensor, errors: Tensor) -> Tensor:
    """Number the groups of rows (rows,) that are equal within their errors.

    Rows that agree are neighbours by their product with a random direction.
    """
    generator = torch.Generator().manual_seed(0)
    places = rows @ torch.randn(rows.shape[1], generator=generator, dtype=rows.dtype)
    order = places.argsort()
    apart = (rows[order[1:]] - rows[order[:-1]]).abs().amax(dim=1)
    new = apart > errors[order[1:]] + errors[order[:-1]]
    group = torch.zeros(len(rows), dtype=torch.long)
    group[order[1:]] = new.long().cumsum(0)
    return group


def taking_part(seen: RoundSum, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Find the rows of which a unit's update is a linear combination.

    Long rows are projected on random directions, which keep every combination and, of more
    directions than rows, let no other fit.

    Returns:
        (units, rows) of whether a row takes part, and (units,) of whether the combination leaves
        nothing but rounding.
    """
    extended = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    update, count = seen.update, min(_MOST, len(rows), extended.shape[1] - _SPARE)
    if extended.shape[1] > 2 * _MOST:
        generator = torch.Generator().manual_seed(1)
        mixed = torch.randn(extended.shape[1], 2 * _MOST, generator=generator, dtype=rows.dtype)
        extended, update = (x @ mixed / math.sqrt(len(mixed)) for x in (extended, update))
    part = torch.zeros(len(seen.update), len(rows), dtype=torch.bool)
    whole = torch.zeros(len(seen.update), dtype=torch.bool)
    if count < 1:
        return part, whole
    likely = seen.active(rows).T.topk(count, dim=1).indices
    for start in range(0, len(part), _UNITS):
        here = slice(start, start + _UNITS)
        basis = extended[likely[here]].mT
        wanted = update[here, :, None]
        shares = torch.linalg.lstsq(basis, wanted).solution
        left = (basis @ shares - wanted).squeeze(-1).abs().amax(dim=1)
        level = seen.error[here] * seen.update[here, -1].abs()
        whole[here] = left <= level
        part[here] = part[here].scatter(1, likely[here], shares.squeeze(-1).abs() > level[:, None])
    return part, whole & torch.isfinite(seen.error)


def groups(rounds: Sequence[RoundSum], rows: Tensor) -> NDArray[np.int64]:
    """Number the group of each row, (rows,); a row that shares no unit is a group alone.

    A unit of which ``rows`` explain the whole update links those that activated it from the start
    and those that came in later, as soon as the former are of one group.
    """
    if not len(rows):
        return np.zeros(0, np.int64)
    found = [_units(each, rows) for each in rounds]
    first, later = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
    group, links = np.arange(len(rows), dtype=np.int64), np.zeros((0, 2), np.int64)
    while len(first):
        owner = np.where(first, group, -1).max(axis=1)
        single = (np.where(first, group, owner[:, None]) == owner[:, None]).all(axis=1)
        unit, row = np.nonzero(later[single])
        starts = first[single].argmax(axis=1)
        new = np.stack([starts[unit], row], axis=1)
        links, first, later = np.concatenate([links, new]), first[~single], later[~single]
        graph = coo_array((np.ones(len(links)), links.T), shape=(len(rows),) * 2)
        before, group = group, connected_components(graph, directed=False)[1].astype(np.int64)
        if len(np.unique(before)) == len(np.unique(group)):
            break
    return group


def _units(seen: RoundSum, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Split the units that link rows into those active from the start and those active later."""
    part, whole = taking_part(seen, rows)
    active = seen.active(rows).T
    near = active.abs() < _NEAR * active.abs().amax()
    first, later = part & (active > 0), part & (active <= 0)
    usable = whole & first.any(dim=1) & later.any(dim=1) & ~(part & near).any(dim=1)
    return first[usable], later[usable]
