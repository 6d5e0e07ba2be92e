"""Records that both spans allow, searched from many starts at once.

[a; 1] in the first layer's row space leaves few coordinates z free, of which a record's cells are
an affine function. In z the residual of the second layer, a box for the cells of categories, and a
pull of each categorical column towards its largest cell are made small by Levenberg's and
Marquardt's steps; the pull is annealed. Without a second layer records are corners of what the
first allows, and are found by linear programmes alone: of 18 batches of 8 to 24 rows of Adult and
German the steps behind these changed no answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.spans import GradientRowSpace, SpanTest, with_one
from gradaudit.audits.attack_table.structure import TwoLayers

_BOX = 3.0
"""Weight of cells outside [0, 1]; .1 found a third fewer rows (prototype, German, 64 records)."""
_ABSENT = 1e-5
_SPREAD = 1e-2
_SCALE = 16.0
"""What the length of [φ; 1] counts as, so that box and residual are in proportion on any model. Of
128 starts for 80 rows of Adult at width 100, 15 rows were found with 16, 9 with 4, 7 with 2."""
_STARTS, _POOL = 64, 1024
"""Starts of a round, and the rows that they are chosen from."""
_DAMPING, _AGAIN = 1e-2, 1e-3
_SMALLER, _LARGER = 0.3, 5.0
PLAIN = (0.0,) * 40
ANNEALED = (*PLAIN[:30], *np.geomspace(0.05, 1.0, 40).tolist(), *PLAIN[:10])
"""The weight of the pull at each step: none, rising geometrically, and none again."""


@dataclass(frozen=True)
class Allowed:
    """The affine set of records that the first layer's row space allows.

    Attributes:
        cells, cells_step: u = cells + z cells_step, (cells,) and (free, cells).
        present: cells of categories that are not zero everywhere.
        groups: the present cells of each categorical column, as places in ``present``.
    """

    cells: Tensor
    cells_step: Tensor
    present: Tensor
    groups: tuple[Tensor, ...]

    def at(self, z: Tensor) -> Tensor:
        """Cells at points, (points, cells)."""
        return self.cells + z @ self.cells_step

    def nearest(self, layers: TwoLayers, cells: Tensor) -> Tensor:
        """The points that come nearest to rows at the first layer, (points, free).

        Each input of the layer counts by its spread over these.
        """
        entered = layers.entered(cells)
        weight = 1 / (entered.std(dim=0, correction=0) + _SPREAD)
        step = (self.cells_step @ layers.entry.T * weight).T
        wanted = ((entered - layers.entered(self.cells[None])) * weight).T
        z: Tensor = torch.linalg.lstsq(step, wanted, driver="gelsd").solution.T
        return z


def allowed(layers: TwoLayers, columns: TableColumns, space: GradientRowSpace) -> Allowed | None:
    """The records that a row space allows; None where it holds none."""
    last = space.rows[:, -1]
    if space.rank == 0 or float(last.norm()) < _ABSENT:
        return None
    if _invertible(layers.entry):
        basis = torch.linalg.svd(last[None])[2][1:]
        entered = (last / last.square().sum()) @ space.rows[:, :-1]
        back = torch.linalg.inv(layers.entry).T
        cells, step = (entered - layers.offset) @ back, basis @ space.rows[:, :-1] @ back
    else:
        cells, step = _constrained(layers, columns, space)
    there = cells.abs() + (step.abs().amax(dim=0) if len(step) else 0) > _ABSENT
    groups = [group[there[group]] for group in columns.groups]
    present = torch.cat([torch.zeros(0, dtype=torch.long), *groups])
    places = torch.split(torch.arange(len(present)), [len(group) for group in groups])
    return Allowed(cells, step, present, places if groups else ())


def _invertible(entry: Tensor) -> bool:
    """Whether cells and what comes in are the same numbers in another order and scale."""
    square = entry.shape[0] == entry.shape[1]
    return square and bool(((entry != 0).sum(dim=0) == 1).all() & ((entry != 0).sum(1) == 1).all())


def _constrained(
    layers: TwoLayers, columns: TableColumns, space: GradientRowSpace
) -> tuple[Tensor, Tensor]:
    """Cells whose entry lies in the row space, each categorical column adding up to one."""
    outside, there = space.rest[:, :-1], (~layers.absent).nonzero()[:, 0]
    sums = layers.entry.new_zeros(len(columns.groups), layers.entry.shape[1])
    for row, group in zip(sums, columns.groups, strict=True):
        row[group] = 1
    left = torch.cat([outside @ layers.entry, sums])[:, there]
    right = torch.cat([-(outside @ layers.offset + space.rest[:, -1]), sums.new_ones(len(sums))])
    u, values, v = torch.linalg.svd(left)
    rank = int((values > 1e-9 * values[0]).sum())
    cells = layers.entry.new_zeros(layers.entry.shape[1])
    steps = layers.entry.new_zeros(len(there) - rank, len(cells))
    cells[there] = (right @ u[:, :rank] / values[:rank]) @ v[:rank]
    steps[:, there] = v[rank:]
    return cells, steps


def starts(test: SpanTest, place: Allowed, generator: torch.Generator) -> Tensor:
    """The points (starts, free) of a pool whose residual at the second layer is least.

    Half of the pool are the attacker's records, half are rows whose columns are independent. For 80
    rows of Adult 64 starts name half as many rows again as starts that are not chosen.
    """
    layers, columns, second = test.layers, test.columns, test.second
    if second is None and columns.groups and len(place.cells_step):
        return _corners(columns, place, generator)
    known = columns.known
    rows = known[torch.randint(len(known), (_POOL // 2,), generator=generator)]
    z = place.nearest(layers, torch.cat([rows, columns.drawn(_POOL // 2, generator)]))
    if second is None:
        return z[:: _POOL // _STARTS]
    residual = second.outside(layers.hidden(place.at(z))).norm(dim=1)
    return z[residual.argsort()[:_STARTS]]


def _corners(columns: TableColumns, place: Allowed, generator: torch.Generator) -> Tensor:
    """The corners, nearest to some known records, of all that is allowed and has no weight below 0.

    A record is such a corner, as no weight of its other categories can be less. For 16 rows of
    Adult 64 linear programmes end at 7 to 12 of them; in random directions it is 5 or 6.
    """
    step, at, numbers = place.cells_step, place.cells, columns.numeric
    low, high = columns.bounds
    sides = torch.cat([-step[:, place.present], step[:, numbers], -step[:, numbers]], dim=1).T
    most = torch.cat([at[place.present] + _ABSENT, high - at[numbers], at[numbers] - low])
    chosen = torch.randint(len(columns.known), (_STARTS,), generator=generator)
    wanted = columns.known[chosen][:, place.present]
    wanted = wanted + _SPREAD * torch.randn(wanted.shape, generator=generator).double()
    ways = -wanted @ step[:, place.present].T
    limits = sides.numpy(), most.numpy()
    solved = [linprog(way, *limits, bounds=(None, None)).x for way in ways.numpy()]
    corners = [torch.from_numpy(z) for z in solved if z is not None]
    return torch.stack(corners) if corners else at.new_zeros(0, len(step))


@dataclass(frozen=True)
class CandidateSearch:
    """A search for records in the spans of both layers.

    Attributes:
        layers: what the model begins with.
        place: what the first row space allows.
        second: the second row space.
        scale: what the length of [φ; 1] counts as beside the cells.
    """

    layers: TwoLayers
    place: Allowed
    second: GradientRowSpace
    scale: float = _SCALE

    def run(self, z: Tensor, pulls: Sequence[float] = ANNEALED) -> tuple[Tensor, Tensor]:
        """Descend from starts (starts, free), with the pull of each step.

        Returns:
            (starts, cells) not rounded, and (starts,) the second layer's relative residual.
        """
        damping = z.new_full((len(z),), _DAMPING)
        for step, pull in enumerate(pulls):
            if step and bool(pull) != bool(pulls[step - 1]):
                damping.fill_(_AGAIN)
            z, damping = self._step(z, damping, pull)
        cells = self.place.at(z)
        return cells, self.second.outside(self.layers.hidden(cells)).norm(dim=1)

    def _step(self, z: Tensor, damping: Tensor, pull: float) -> tuple[Tensor, Tensor]:
        before = self._base + z @ self._entry.T
        factor = self.scale / with_one(self.layers.value(before)).norm(dim=1, keepdim=True)
        towards = self._onehot(self._categories(z))
        missed, boxed, pulled = residuals = self._residuals(z, towards, pull, factor)
        slope = self.second.rest[:, :-1] * self.layers.slope(before)[:, None, :]
        jacobian = slope @ self._entry * factor[:, :, None]
        beyond = (boxed != 0).to(z) * _BOX
        gradient = torch.einsum("bkn,bk->bn", jacobian, missed)
        gradient = gradient + (boxed * beyond + pulled * pull) @ self._cells.T
        weighted = (beyond.square() + pull**2)[:, None, :] * self._cells[None]
        normal = jacobian.mT @ jacobian + weighted @ self._cells.T
        diagonal = normal.diagonal(dim1=1, dim2=2)
        floor = 1e-9 * diagonal.mean(dim=1, keepdim=True)
        normal = normal + torch.diag_embed(damping[:, None] * (diagonal + floor) + 1e-14)
        moved = z - torch.linalg.solve(normal, gradient)
        better = _cost(self._residuals(moved, towards, pull, factor)) < _cost(residuals)
        damping = torch.where(better, damping * _SMALLER, damping * _LARGER).clamp(1e-13, 1e6)
        return torch.where(better[:, None], moved, z), damping

    def _residuals(
        self, z: Tensor, towards: Tensor, pull: float, factor: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What is made small: outside the second span, outside the box, and against the pull."""
        hidden = with_one(self.layers.value(self._base + z @ self._entry.T))
        v = self._categories(z)
        missed = hidden @ self.second.rest.T * factor
        return missed, (v - v.clamp(0, 1)) * _BOX, (v - towards) * pull

    def _categories(self, z: Tensor) -> Tensor:
        return self.place.cells[self.place.present] + z @ self._cells

    def _onehot(self, v: Tensor) -> Tensor:
        target = torch.zeros_like(v)
        for group in filter(len, self.place.groups):
            target[torch.arange(len(v)), group[v[:, group].argmax(dim=1)]] = 1
        return target

    @cached_property
    def _entry(self) -> Tensor:
        return self.layers.weight @ (self.place.cells_step @ self.layers.entry.T).T

    @cached_property
    def _base(self) -> Tensor:
        return self.layers.before(self.place.cells[None])

    @cached_property
    def _cells(self) -> Tensor:
        return self.place.cells_step[:, self.place.present]


def _cost(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts), dim=1).square().sum(dim=1)
