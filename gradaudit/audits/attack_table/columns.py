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
        off, on: (positions,) a one-hot position's value without and with its category.
        mean, deviation: (positions,) of numeric positions among the attacker's records.
        whole: whether records are whole numbers.
        known: the attacker's records in cell space, (records, cells).
    """

    features: tuple[Feature, ...]
    shape: tuple[int, ...]
    off: Tensor
    on: Tensor
    mean: Tensor
    deviation: Tensor
    whole: bool
    known: Tensor

    @classmethod
    def of(cls, records: Records, others: Tensor) -> Self:
        """The columns of a data set.

        Args:
            records: whose schema is taken.
            others: (records, …) inputs that the attacker has, for the columns' marginals.
        """
        shape = tuple(records.inputs.shape[1:])
        flat = others.flatten(1).double()
        covered = {p for feature in records.features for p in feature.positions}
        rest = (Feature(str(p), (p,)) for p in range(flat.shape[1]) if p not in covered)
        features = (*records.features, *rest)
        low, high = flat.aminmax(dim=0)
        deviation = flat.std(dim=0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        whole = records.discrete
        made = cls(features, shape, low, high, flat.mean(dim=0), deviation, whole, flat[:0])
        return replace(made, known=made.cells(flat))

    @cached_property
    def groups(self) -> tuple[Tensor, ...]:
        """The cells of each categorical column, in the columns' order."""
        return tuple(torch.arange(*ends) for f, ends in self.placed if is_categorical(f))

    @cached_property
    def numeric(self) -> Tensor:
        """The cells of the numeric columns, in the columns' order."""
        starts = [ends[0] for f, ends in self.placed if not is_categorical(f)]
        return torch.tensor(starts, dtype=torch.long)

    @property
    def cells_in_all(self) -> int:
        """How many coordinates cell space has."""
        return self.placed[-1][1][1]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names; none of records that are no table, as pictures are."""
        names = tuple(feature.name for feature in self.features)
        return names if len(self.shape) == 1 else ()

    def cells(self, inputs: Tensor) -> Tensor:
        """Records (records, …) in cell space, (records, cells); rounded to their categories."""
        flat = inputs.flatten(1).double()
        u = flat.new_zeros(len(flat), self.cells_in_all)
        for feature, (start, stop) in self.placed:
            places = list(feature.positions)
            if feature.coded:
                code = flat[:, places[0]].long().clamp(0, stop - start - 1)
                u[torch.arange(len(flat)), start + code] = 1
            elif feature.values:
                weight = (flat[:, places] - self.off[places]) / self._step[places]
                u[torch.arange(len(flat)), start + weight.argmax(dim=1)] = 1
            else:
                u[:, start] = (flat[:, places[0]] - self.mean[places[0]]) / self.deviation[
                    places[0]
                ]
        return u

    def inputs(self, cells: Tensor) -> Tensor:
        """Points of cell space as records (points, …); a code is its column's largest weight."""
        x = cells.new_zeros(len(cells), self.off.numel())
        for feature, (start, stop) in self.placed:
            places = list(feature.positions)
            block = cells[:, start:stop]
            if feature.coded:
                x[:, places[0]] = block.argmax(dim=1).to(x)
            elif feature.values:
                x[:, places] = self.off[places] + self._step[places] * block
            else:
                x[:, places[0]] = self.mean[places[0]] + self.deviation[places[0]] * block[:, 0]
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
        count = self.cells_in_all
        points = torch.cat([torch.zeros(1, count), torch.eye(count)]).double()
        made = self.inputs(points).flatten(1)
        return made[1:] - made[0], made[0]

    def rounded(self, cells: Tensor) -> Tensor:
        """Each categorical column with its largest weight as 1, the numbers as they are."""
        whole = cells.clone()
        for group in self.groups:
            whole[:, group] = 0
            largest = group[cells[:, group].argmax(dim=1)]
            whole[torch.arange(len(cells)), largest] = 1
        return whole

    def codes(self, cells: Tensor) -> Tensor:
        """The category of each categorical column, (points, groups)."""
        if not self.groups:
            return torch.zeros(len(cells), 0, dtype=torch.long)
        return torch.stack([cells[:, group].argmax(dim=1) for group in self.groups], dim=1)

    def spelled(self, cells: Tensor) -> list[list[str]]:
        """Rows as text: names of categories, and numbers as the records hold them."""
        numbers = self.inputs(self.rounded(cells)).flatten(1)
        rows = []
        for row, flat in zip(cells, numbers, strict=True):
            text = []
            for feature, (start, stop) in self.placed:
                if feature.values:
                    text.append(feature.values[int(row[start:stop].argmax())])
                else:
                    text.append(f"{float(flat[feature.positions[0]]):.6g}")
            rows.append(text)
        return rows

    def as_single(self, cells: Tensor) -> Tensor:
        """The points whose numbers are rounded to what single precision holds of an input."""
        single = self.cells(self.inputs(cells).float())
        rounded = cells.clone()
        rounded[:, self.numeric] = single[:, self.numeric]
        return rounded

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Least and largest number of each numeric column, (numbers,); its range wider each way."""
        low, high = self.known[:, self.numeric].aminmax(dim=0)
        return 2 * low - high, 2 * high - low

    @cached_property
    def values(self) -> tuple[Tensor, ...]:
        """The different numbers of each numeric column among the attacker's records, rising."""
        return tuple(torch.unique(self.known[:, place]) for place in self.numeric.tolist())

    def as_known(self, cells: Tensor) -> Tensor:
        """The points with each number moved to the nearest that the attacker's records have."""
        moved = cells.clone()
        for place, values in zip(self.numeric.tolist(), self.values, strict=True):
            behind = torch.searchsorted(values, cells[:, place].contiguous())
            low = values[(behind - 1).clamp(min=0)]
            high = values[behind.clamp(max=len(values) - 1)]
            nearer = (high - cells[:, place]).abs() < (cells[:, place] - low).abs()
            moved[:, place] = torch.where(nearer, high, low)
        return moved

    def first_of_each(self, cells: Tensor, decimals: int = 3) -> Tensor:
        """Places of rows of which none before has the same categories and about the same numbers.

        Args:
            cells: (rows, cells).
            decimals: of numbers, in deviations, in which two rows differ.
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
        u = self.known.new_zeros(count, self.cells_in_all)
        for _, (start, stop) in self.placed:
            rows = torch.randint(len(self.known), (count,), generator=generator)
            u[:, start:stop] = self.known[rows, start:stop]
        return u

    @property
    def _step(self) -> Tensor:
        return torch.where(self.on > self.off, self.on - self.off, 1.0)

    @cached_property
    def placed(self) -> tuple[tuple[Feature, tuple[int, int]], ...]:
        """Each column with the first of its cells and the one behind its last."""
        placed, start = [], 0
        for feature in self.features:
            stop = start + (len(feature.values) if is_categorical(feature) else 1)
            placed.append((feature, (start, stop)))
            start = stop
        return tuple(placed)


def is_categorical(feature: Feature) -> bool:
    """Whether a column holds categories."""
    return bool(feature.values)
