"""The private column of the game: where it lies in a record's inputs, and what it can be."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradaudit.data.records import Feature, Records
from gradaudit.errors import NotApplicable

MAX_VALUES = 64
"""A column of numbers with more values than this is represented by so many of them."""


@dataclass(frozen=True)
class PrivateColumn:
    """An input column whose value the game replaces.

    Attributes:
        name: the column's name.
        positions: (width,) int64, where it lies in the flattened inputs.
        values: (values, width), what it can be, in encoded units.
        names: the values in words.
    """

    name: str
    positions: Tensor
    values: Tensor
    names: tuple[str, ...]

    @classmethod
    def of(cls, records: Records, name: str) -> "PrivateColumn":
        """The column of that name, with every category, or the numbers observed in it.

        Numbers of more than ``MAX_VALUES`` values are represented by evenly spaced ranks, the
        extremes among them.

        Raises:
            NotApplicable: the attribute is no input column, or has a single value.
        """
        feature = next((f for f in records.features if f.name == name), None)
        if feature is None or records.discrete:
            columns = ", ".join(f.name for f in records.features) or "none"
            raise NotApplicable(
                f"attribute {name!r} is not a column of the inputs, so it cannot be replaced in a "
                f"record; columns: {columns}"
            )
        positions = torch.tensor(feature.positions)
        if feature.values:
            values, names = torch.eye(len(feature.values)), feature.values
        else:
            values, names = _numbers(feature, records)
        if len(values) < 2:
            raise NotApplicable(f"attribute {name!r} has one value only; nothing can replace it")
        return cls(name, positions, values.to(torch.float64), names)

    def __len__(self) -> int:
        return len(self.values)

    def put(self, inputs: Tensor, value: Tensor) -> Tensor:
        """Records with this value in the column.

        Args:
            inputs: (…, positions) flattened inputs.
            value: (…, width), broadcast against ``inputs``.

        Returns:
            (…, positions), differentiable in ``inputs``.
        """
        block = value.to(inputs).expand(*inputs.shape[:-1], -1)
        return inputs.index_copy(inputs.dim() - 1, self.positions.to(inputs.device), block)

    def variants(self, inputs: Tensor) -> Tensor:
        """Every record with every value: (records, positions) to (records, values, positions)."""
        each = inputs.unsqueeze(1).expand(-1, len(self), -1)
        return self.put(each, self.values.to(inputs.device))

    def value_in(self, inputs: Tensor) -> Tensor:
        """Index of the value nearest to what each record holds: (records, positions) to (records,).

        A category, and a number among ``values``, is found exactly.
        """
        held = inputs[..., self.positions.to(inputs.device)].to(torch.float64)
        return torch.cdist(held, self.values.to(inputs.device)).argmin(dim=1)


def _numbers(feature: Feature, records: Records) -> tuple[Tensor, tuple[str, ...]]:
    """Observed numbers (values, 1) of a column, and their names."""
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
