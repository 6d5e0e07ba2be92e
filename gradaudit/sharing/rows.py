"""Gradients of one layer, many rows of them, formed or (in ``factors``) not."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

QUICK_BYTES = 4 << 20
"""Larger blocks go back to the system after every use, and fetching them again costs more than
the arithmetic."""
_CACHED_BYTES = 2 << 20
"""A block of columns that is summed many times over should stay in a cache."""
_NARROWEST = 64


class Rows(ABC):
    """Gradients (rows, elements) of one layer."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where they lie."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers that a row takes."""

    @property
    @abstractmethod
    def elements(self) -> int:
        """Elements of a gradient."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The gradients themselves, (rows, elements)."""

    @abstractmethod
    def columns(self, elements: Tensor) -> Tensor:
        """Some of their elements, (rows, chosen)."""

    @abstractmethod
    def squares(self) -> Tensor:
        """Squared L2 norms, (rows,) float64."""

    @abstractmethod
    def scaled(self, factors: Tensor) -> "Rows":
        """Each row times its factor, of (rows,)."""

    @abstractmethod
    def mix(self, rows: Tensor, weights: Tensor, into: Tensor) -> None:
        """Weighted sums of rows, written into a tensor.

        Args:
            rows: (sums, terms) which rows.
            weights: (sums, terms) times what.
            into: (sums, elements), on any device.
        """

    def mixed(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Weighted sums of rows, (sums, elements), where the rows lie."""
        found = torch.empty(len(rows), self.elements, dtype=weights.dtype, device=self.device)
        self.mix(rows, weights, found)
        return found

    @classmethod
    @abstractmethod
    def joined(cls, parts: "list[Self]") -> Self:
        """Parts one after the other."""


@dataclass(frozen=True)
class Dense(Rows):
    """Gradients that are formed.

    Attributes:
        values: (rows, elements).
    """

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    @property
    def device(self) -> torch.device:
        """Of the values."""
        return self.values.device

    @property
    def width(self) -> int:
        """Its elements."""
        return self.values.shape[1]

    @property
    def elements(self) -> int:
        """Its elements."""
        return self.values.shape[1]

    def dense(self) -> Tensor:
        """As they are."""
        return self.values

    def columns(self, elements: Tensor) -> Tensor:
        """(rows, chosen)."""
        return self.values[:, elements]

    def squares(self) -> Tensor:
        """(rows,) float64."""
        norms: Tensor = torch.linalg.vector_norm(self.values, dim=1, dtype=torch.float64)
        return norms.square()

    def scaled(self, factors: Tensor) -> "Dense":
        """Each row times its factor."""
        return Dense(self.values * factors[:, None].to(self.values))

    def mix(self, rows: Tensor, weights: Tensor, into: Tensor) -> None:
        """As sparse products with blocks of columns that fit a cache."""
        size, columns = self.values.element_size(), self.elements
        if rows.numel() > len(self):  # else it does not pay to copy a block
            columns = min(columns, max(_NARROWEST, _CACHED_BYTES // (size * len(self))))
        step = max(1, QUICK_BYTES // (size * columns))
        rows, weights = rows.to(self.device), weights.to(self.values)
        for left in range(0, self.elements, columns):
            block = self.values[:, left : left + columns].contiguous()
            for start in range(0, len(rows), step):
                part = slice(start, start + step)
                into[part, left : left + columns] = F.embedding_bag(
                    rows[part], block, per_sample_weights=weights[part], mode="sum"
                )

    @classmethod
    def joined(cls, parts: "list[Dense]") -> "Dense":
        """One after the other."""
        return cls(torch.cat([part.values for part in parts]))


def room(rows: int, elements: int, dtype: torch.dtype) -> Tensor:
    """An empty tensor on the CPU; numpy asks the system for large pages, which come faster."""
    kind = {torch.float32: np.float32, torch.float64: np.float64}.get(dtype)
    if kind is None:
        return torch.empty(rows, elements, dtype=dtype)
    return torch.from_numpy(np.empty((rows, elements), kind))
