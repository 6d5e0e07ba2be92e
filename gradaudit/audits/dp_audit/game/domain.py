"""The domain of a game's record: the values of its private column, and its other columns."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradaudit.data.records import Feature, Records
from gradaudit.errors import NotApplicable

DomainName = Literal["feasible", "free"]

PRESENCE, RECORD, NO_RECORD = "record's presence", "the record", "no record"
MAX_VALUES = 64
"""A column of numbers with more values than this is represented by so many of them."""


@dataclass(frozen=True)
class PrivateColumn:
    """An input column whose value the game replaces.

    ``positions``, (width,) int64, are where it lies in the flattened inputs, ``values``, (values,
    width), what it can be, in encoded units, and ``names`` the values in words.
    """

    name: str
    positions: Tensor
    values: Tensor
    names: tuple[str, ...]

    @classmethod
    def of(cls, records: Records, name: str) -> Self:
        """Find the column by its name, with every category, or the numbers observed in it.

        Numbers of more than ``MAX_VALUES`` values are represented by evenly spaced ranks, the
        extremes among them.

        Raises:
            NotApplicable: the attribute is no input column, or has a single value.
        """
        feature = next((f for f in records.features if f.name == name), None)
        if feature is not None and records.discrete:
            raise NotApplicable(
                f"all columns are codes, and the game is played on real numbers: take {name!r} "
                "one-hot (columns=one-hot), with a model that reads it so"
            )
        if feature is None:
            columns = ", ".join(f.name for f in records.features) or "none"
            raise NotApplicable(
                f"attribute {name!r} is not a column of the inputs, so it cannot be replaced in a "
                f"record; columns: {columns}"
            )
        positions = torch.tensor(feature.positions)
        if feature.coded:
            values, names = torch.arange(len(feature.values))[:, None], feature.values
        elif feature.values:
            values, names = torch.eye(len(feature.values)), feature.values
        else:
            values, names = _numbers(feature, records)
        if len(values) < 2:
            raise NotApplicable(f"attribute {name!r} has one value only; nothing can replace it")
        return cls(name, positions, values.to(torch.float64), names)

    @classmethod
    def of_presence(cls) -> Self:
        """Make the column of the removal game, without positions: a record, or its absence."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(PRESENCE, none, torch.zeros(2, 0, dtype=torch.float64), (RECORD, NO_RECORD))

    def __len__(self) -> int:
        return len(self.values)

    def put(self, inputs: Tensor, value: Tensor) -> Tensor:
        """Set this value in the column of records.

        Flattened inputs (…, positions) and a value (…, width), broadcast against them, to (…,
        positions), differentiable in the inputs.
        """
        block = value.to(inputs).expand(*inputs.shape[:-1], -1)
        return inputs.index_copy(inputs.dim() - 1, self.positions.to(inputs.device), block)

    def variants(self, inputs: Tensor) -> Tensor:
        """Set every value in every record: (records, positions) to (records, values, positions)."""
        copies = inputs.unsqueeze(1).expand(-1, len(self), -1)
        return self.put(copies, self.values.to(inputs.device))

    def value_in(self, inputs: Tensor) -> Tensor:
        """Find the value nearest to each record's own: (records, positions) to indices (records,).

        A category, and a number among ``values``, is found exactly.
        """
        held = inputs[..., self.positions.to(inputs.device)].to(torch.float64)
        return torch.cdist(held, self.values.to(inputs.device)).argmin(dim=1)


def _numbers(feature: Feature, records: Records) -> tuple[Tensor, tuple[str, ...]]:
    """List the observed numbers (values, 1) of a column, and their names."""
    (position,) = feature.positions
    column = records.inputs.flatten(1)[:, position].cpu().numpy().astype(np.float64)
    observed, first = np.unique(column, return_index=True)
    ranks = np.linspace(0, len(observed) - 1, min(len(observed), MAX_VALUES)).round().astype(int)
    attribute = records.attributes.get(feature.name)
    if attribute is not None and len(attribute.values) == len(observed):
        names = tuple(attribute.values[code] for code in attribute.codes[first[ranks]])
    else:
        names = tuple(f"{number:.4g}" for number in observed[ranks])
    return torch.from_numpy(observed[ranks])[:, None], names


@dataclass(frozen=True)
class Domain:
    """The set of inputs that crafting may move in; the private column stays out of it.

    Smallest and largest values, (positions,), are infinite where free; ``unit``, (positions,), is
    what counts as one step: the deviation of a number, one for a category, zero in the private
    column and in codes, which no slope can move. One-hot groups, none where free, are (width,)
    tensors of positions each.
    """

    low: Tensor
    high: Tensor
    unit: Tensor
    groups: tuple[Tensor, ...]

    @classmethod
    def of(cls, records: Records, column: PrivateColumn, name: DomainName) -> Self:
        """Make the domain of a data set without its private column.

        ``feasible`` keeps numbers in their observed range (pictures in [0, 1]) and categories
        one-hot. In the ``free`` domain any position may take any value.
        """
        inputs = records.inputs.flatten(1).to(torch.float64)
        grouped = [f for f in records.features if f.values and not f.coded]
        groups = tuple(torch.tensor(f.positions) for f in grouped)
        unit = inputs.std(dim=0, correction=0)
        unit[unit == 0] = 1
        for group in groups:
            unit[group] = 1
        unit[column.positions] = 0
        for feature in records.features:
            if feature.coded:
                unit[list(feature.positions)] = 0
        if name == "free":
            infinite = torch.full_like(unit, math.inf)
            return cls(-infinite, infinite, unit, ())
        low, high = inputs.amin(dim=0), inputs.amax(dim=0)
        if records.inputs.dim() > 2 and low.min() >= 0 and high.max() <= 1:
            low, high = torch.zeros_like(low), torch.ones_like(high)
        return cls(low, high, unit, tuple(g for g in groups if unit[g].any()))

    def to(self, like: Tensor) -> Self:
        """Move the domain to the precision and device of the records that it confines."""
        groups = tuple(group.to(like.device) for group in self.groups)
        low, high, unit = (part.to(like) for part in (self.low, self.high, self.unit))
        return replace(self, low=low, high=high, unit=unit, groups=groups)

    def confine(self, scores: Tensor) -> Tensor:
        """Confine the scores of an ascent (…, positions) to the domain's reach.

        Numbers come into their range. Of a category the scores relative to the largest count, and
        none falls so far behind that it could not come back.
        """
        confined = scores.clamp(self.low, self.high)
        for group in self.groups:
            behind = scores[..., group] - scores[..., group].amax(dim=-1, keepdim=True)
            confined[..., group] = behind.clamp(min=-1)
        return confined

    def project(self, scores: Tensor) -> Tensor:
        """Map scores to the record (…, positions) that they represent.

        Numbers in their range, and of each group the category with the largest score.
        """
        record = scores.clamp(self.low, self.high)
        for group in self.groups:
            chosen = scores[..., group].argmax(dim=-1)
            record[..., group] = F.one_hot(chosen, len(group)).to(record)
        return record

    def share(self, moments: Tensor) -> Tensor:
        """Share the largest moment within each group of positions, (…, positions).

        Steps divided by them keep the order of a group's slopes.
        """
        shared = moments.clone()
        for group in self.groups:
            shared[..., group] = moments[..., group].amax(dim=-1, keepdim=True)
        return shared

    def apart(self, inputs: Tensor, record: Tensor) -> Tensor:
        """Compute squared distances of inputs (records, positions) to a record, in column units.

        The private column does not count.
        """
        counted = self.unit > 0
        return ((inputs - record)[:, counted] / self.unit[counted]).square().sum(dim=1)
