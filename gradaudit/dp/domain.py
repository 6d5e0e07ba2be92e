"""What a canary may look like: any numbers, or only a record that could be in the data."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gradaudit.data.records import Records
from gradaudit.dp.attribute import PrivateColumn

DomainName = Literal["feasible", "free"]


@dataclass(frozen=True)
class Domain:
    """The set of inputs that crafting may move in; the private column stays out of it.

    Attributes:
        low: (positions,) smallest values; −∞ where free.
        high: (positions,) largest values; +∞ where free.
        unit: (positions,) what counts as one step: the deviation of a number, one for a category;
            zero in the private column.
        groups: one-hot groups, each a (width,) tensor of positions; none where free.
    """

    low: Tensor
    high: Tensor
    unit: Tensor
    groups: tuple[Tensor, ...]

    @classmethod
    def of(cls, records: Records, column: PrivateColumn, name: DomainName) -> "Domain":
        """The domain of a data set without its private column.

        ``feasible`` keeps numbers in their observed range (pictures in [0, 1]) and categories
        one-hot. In the ``free`` domain any position may take any value.
        """
        inputs = records.inputs.flatten(1).to(torch.float64)
        groups = tuple(torch.tensor(f.positions) for f in records.features if f.values)
        unit = inputs.std(dim=0, correction=0)
        unit[unit == 0] = 1
        for group in groups:
            unit[group] = 1
        unit[column.positions] = 0
        if name == "free":
            infinite = torch.full_like(unit, math.inf)
            return cls(-infinite, infinite, unit, ())
        low, high = inputs.amin(dim=0), inputs.amax(dim=0)
        if records.inputs.dim() > 2 and low.min() >= 0 and high.max() <= 1:
            low, high = torch.zeros_like(low), torch.ones_like(high)
        return cls(low, high, unit, tuple(g for g in groups if unit[g].any()))

    def confine(self, scores: Tensor) -> Tensor:
        """What an ascent moves (…, positions), kept within reach of the domain.

        Numbers come into their range. Of a category the scores relative to the largest count, and
        none falls so far behind that it could not come back.
        """
        confined = scores.clamp(self.low.to(scores), self.high.to(scores))
        for group in self.groups:
            behind = scores[..., group] - scores[..., group].amax(dim=-1, keepdim=True)
            confined[..., group] = behind.clamp(min=-1)
        return confined

    def project(self, scores: Tensor) -> Tensor:
        """The record (…, positions) that scores stand for.

        Numbers in their range, and of each group the category with the largest score.
        """
        record = scores.clamp(self.low.to(scores), self.high.to(scores))
        for group in self.groups:
            chosen = scores[..., group].argmax(dim=-1)
            record[..., group] = F.one_hot(chosen, len(group)).to(record)
        return record

    def share(self, moments: Tensor) -> Tensor:
        """Moments (…, positions) of which each group has its largest throughout.

        Steps divided by them keep the order of a group's slopes.
        """
        shared = moments.clone()
        for group in self.groups:
            shared[..., group] = moments[..., group].amax(dim=-1, keepdim=True)
        return shared

    def apart(self, inputs: Tensor, record: Tensor) -> Tensor:
        """Squared distance of inputs (records, positions) to a record, in units of each column.

        The private column does not count.
        """
        counted = self.unit > 0
        return ((inputs - record)[:, counted] / self.unit[counted]).square().sum(dim=1)
