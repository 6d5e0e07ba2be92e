"""What a data adapter yields: records with task labels, private attributes, users, a schema."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue


@dataclass(frozen=True)
class Attribute:
    """A private attribute: ``codes[i]`` indexes ``values`` for record i.

    ``codes`` has shape (records,), int64, without missing entries (a missing value is a value of
    its own).
    """

    codes: NDArray[np.int64]
    values: tuple[str, ...]


@dataclass(frozen=True)
class Feature:
    """One column of a table as it lies in the encoded inputs.

    A numeric column takes one position and has its observed (low, high) range in encoded units;
    a categorical column takes a one-hot group of ``len(values)`` positions.
    """

    name: str
    positions: tuple[int, ...]
    range: tuple[float, float] | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Records:
    """A data set in memory.

    Attributes:
        inputs: (records, …) floats, or integer tokens for discrete inputs.
        labels: (records,) int64 class labels, or (records,) or (records, outputs) float targets.
        classes: names of the classes, empty for regression.
        attributes: the named private attributes.
        users: (records,) user of each record, or None.
        members: (records,) whether the record was in the training set, or None.
        features: the table's columns, empty for other data.
        adapter: the adapter's name.
        notes: what the adapter did to the data (encoding, imputation), for the report.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    classes: tuple[str, ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict)
    users: NDArray[np.str_] | None = None
    members: NDArray[np.bool_] | None = None
    features: tuple[Feature, ...] = ()
    adapter: str = ""
    notes: dict[str, JsonValue] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def discrete(self) -> bool:
        """Whether the inputs are tokens rather than real numbers."""
        return not self.inputs.is_floating_point()

    def take(self, indices: NDArray[np.int64]) -> "Records":
        """The records at ``indices``, in that order."""
        rows = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        return replace(
            self,
            inputs=self.inputs[rows],
            labels=self.labels[rows],
            attributes={
                name: Attribute(attribute.codes[indices], attribute.values)
                for name, attribute in self.attributes.items()
            },
            users=None if self.users is None else self.users[indices],
            members=None if self.members is None else self.members[indices],
        )
