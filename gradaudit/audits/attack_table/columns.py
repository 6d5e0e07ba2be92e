"""The columns of a table as unknown cells: one-hot weights of categories, and standardised numbers.

A record x of the data set is a point u of "cell space": for a categorical column one coordinate a
category (1 for the record's own, 0 for the others), for a numeric column one coordinate, the number
in standard deviations from its mean. Means and deviations are those of records that the attacker
has of the same kind. Whatever a data set encodes (one-hot groups of any two values, codes that an
embedding looks up, raw or standardised numbers), u is the same.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from gradaudit.data.records import Feature, Records
from gradaudit.errors import NotApplicable

_ALIKE = 0.02
"""Deviations that numbers of one row may differ by."""


@dataclass(frozen=True)
class TableColumns:
    """How the columns of a table lie in a record and in cell space.

    Attributes:
        features: the columns; positions that belong to none are numeric columns of their own.
        shape: of one record.
        base, step: (positions,) a position that holds no code is base + step times its cell: a
            one-hot position's value without its category and what the category adds, or a number's
            mean and deviation among the attacker's records.
        whole: whether records are whole numbers.
        known: the attacker's records in cell space, (records, cells).
    """

    features: tuple[Feature, ...]
    shape: tuple[int, ...]
    base: Tensor
    step: Tensor
    whole: bool
    known: Tensor

    @classmethod
    def of(cls, records: Records, others: Tensor) -> Self:
        """The columns of a data set's schema, with marginals of inputs that the attacker has."""
        flat = others.flatten(1).double()
        covered = {p for feature in records.features for p in feature.positions}
        rest = (Feature(str(p), (p,)) for p in range(flat.shape[1]) if p not in covered)
        features = (*records.features, *rest)
        onehot = [p for feature in features if feature.values for p in feature.positions]
        low, high = flat[:, onehot].aminmax(dim=0)
        base, step = flat.mean(dim=0), flat.std(dim=0, correction=0)
        base[onehot], step[onehot] = low, high - low
        step = torch.where(step > 0, step, 1.0)
        shape = tuple(records.inputs.shape[1:])
        made = cls(features, shape, base, step, records.discrete, flat[:0])
        return replace(made, known=made.cells(flat))

    @cached_property
    def placed(self) -> tuple[tuple[Feature, slice], ...]:
        """Each column with its cells."""
        placed, start = [], 0
        for feature in self.features:
            stop = start + max(1, len(feature.values))
            placed.append((feature, slice(start, stop)))
            start = stop
        return tuple(placed)

    @cached_property
    def groups(self) -> tuple[Tensor, ...]:
        """The cells of each categorical column, in the columns' order."""
        return tuple(torch.arange(at.start, at.stop) for f, at in self.placed if f.values)

    @cached_property
    def numeric(self) -> Tensor:
        """The cells of the numeric columns, in the columns' order."""
        return torch.tensor([at.start for f, at in self.placed if not f.values]).long()

    @property
    def cells_in_all(self) -> int:
        """How many coordinates cell space has."""
        return int(self.placed[-1][1].stop)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names; none of records that are no table, as pictures are."""
        names = tuple(feature.name for feature in self.features)
        return names if len(self.shape) == 1 else ()

    def cells(self, inputs: Tensor) -> Tensor:
        """Records (records, …) in cell space, (records, cells); rounded to their categories."""
        flat = inputs.flatten(1).double()
        cells = flat.new_zeros(len(flat), self.cells_in_all)
        for feature, at in self.placed:
            places = list(feature.positions)
            if feature.coded:
                code = flat[:, places].long().clamp(0, at.stop - at.start - 1)
                cells[:, at].scatter_(1, code, 1.0)
            else:
                cells[:, at] = (flat[:, places] - self.base[places]) / self.step[places]
        return self.rounded(cells)

    def inputs(self, cells: Tensor) -> Tensor:
        """Points of cell space as records (points, …); a code is its column's largest weight."""
        x = cells.new_zeros(len(cells), self.base.numel())
        for feature, at in self.placed:
            places = list(feature.positions)
            if feature.coded:
                x[:, places[0]] = cells[:, at].argmax(dim=1).to(x)
            else:
                x[:, places] = self.base[places] + self.step[places] * cells[:, at]
        x = x.reshape(-1, *self.shape)
        return x.long() if self.whole else x

    @cached_property
    def linear(self) -> tuple[Tensor, Tensor]:
        """The matrix (cells, positions) and offset (positions,) that make cells records.

        Raises:
            NotApplicable: a column is of codes, which are not linear in the cells.
        """
        if coded := [feature.name for feature in self.features if feature.coded]:
            raise NotApplicable(
                f"column {coded[0]} holds codes, between which there is nothing to optimise"
            )
        made = self.inputs(self.corners).flatten(1)
        return made[1:] - made[0], made[0]

    @property
    def corners(self) -> Tensor:
        """The origin of cell space and its unit vectors, (1 + cells, cells)."""
        count = self.cells_in_all
        return torch.cat([torch.zeros(1, count), torch.eye(count)]).double()

    def rounded(self, cells: Tensor) -> Tensor:
        """Each categorical column with its largest weight as 1, the numbers as they are."""
        whole = cells.clone()
        for group in self.groups:
            whole[:, group] = 0
            whole[torch.arange(len(cells)), group[cells[:, group].argmax(dim=1)]] = 1
        return whole

    def codes(self, cells: Tensor) -> Tensor:
        """The category of each categorical column, (points, groups)."""
        codes = [cells[:, group].argmax(dim=1) for group in self.groups]
        return torch.stack(codes, dim=1) if codes else torch.zeros(len(cells), 0).long()

    def spelled(self, cells: Tensor) -> list[list[str]]:
        """Rows as text: names of categories, and numbers as the records hold them."""
        numbers = self.inputs(self.rounded(cells)).flatten(1)
        return [
            [
                feature.values[int(row[at].argmax())]
                if feature.values
                else f"{float(flat[feature.positions[0]]):.6g}"
                for feature, at in self.placed
            ]
            for row, flat in zip(cells, numbers, strict=True)
        ]

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Least and largest number of each numeric column, (numbers,); its range wider each way."""
        low, high = self.known[:, self.numeric].aminmax(dim=0)
        return 2 * low - high, 2 * high - low

    @cached_property
    def values(self) -> tuple[Tensor, ...]:
        """The different numbers of each numeric column among the attacker's records, rising."""
        return tuple(torch.unique(self.known[:, place]) for place in self.numeric.tolist())

    def as_single(self, cells: Tensor) -> Tensor:
        """The points whose numbers are rounded to what single precision holds of an input."""
        single = self.cells(self.inputs(cells).float())
        rounded = cells.clone()
        rounded[:, self.numeric] = single[:, self.numeric]
        return rounded

    def as_known(self, cells: Tensor) -> Tensor:
        """The points with each number moved to the nearest that the attacker's records have."""
        moved = cells.clone()
        for place, values in zip(self.numeric.tolist(), self.values, strict=True):
            behind = torch.searchsorted(values, cells[:, place].contiguous())
            low, high = values[(behind - 1).clamp(min=0)], values[behind.clamp(max=len(values) - 1)]
            nearer = (high - cells[:, place]).abs() < (cells[:, place] - low).abs()
            moved[:, place] = torch.where(nearer, high, low)
        return moved

    def first_of_each(self, cells: Tensor, decimals: int = 3) -> Tensor:
        """Places of rows of which none before has the same categories and about the same numbers.

        Numbers are about the same in deviations of so many decimals.
        """
        numbers = (cells[:, self.numeric] * 10**decimals).round()
        keys = torch.cat([self.codes(cells).to(numbers), numbers], dim=1).tolist()
        seen: dict[tuple[float, ...], int] = {}
        for place, key in enumerate(keys):
            seen.setdefault(tuple(key), place)
        return torch.tensor([*seen.values()], dtype=torch.long)

    def alike(self, cells: Tensor, others: Tensor, tolerance: float | Tensor = _ALIKE) -> Tensor:
        """Whether rows have the same categories and numbers that differ by no more: (rows, others).

        The tolerance is in deviations, of all numbers or (rows, others, numbers).
        """
        same = (self.codes(cells)[:, None] == self.codes(others)[None]).all(dim=2)
        gap = (cells[:, None, self.numeric] - others[None, :, self.numeric]).abs()
        return same & (gap <= tolerance).all(dim=2)

    def drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """Points whose columns are drawn independently from the attacker's records."""
        cells = self.known.new_zeros(count, self.cells_in_all)
        for _, at in self.placed:
            rows = torch.randint(len(self.known), (count,), generator=generator)
            cells[:, at] = self.known[rows, at]
        return cells

    def swapped(self, cells: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Rows with one category swapped for another of its column, (decoys, cells)."""
        several = [group for group in self.groups if len(group) > 1]
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
