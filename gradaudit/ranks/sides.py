"""The two sides that Û can be seen to have full rank from: its inputs, or its rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gradaudit.ranks.banded import gram_inverse
from gradaudit.ranks.bound import RowSpace
from gradaudit.ranks.operator import ReducedU


@dataclass(frozen=True)
class Side(ABC):
    """A space in which B = Ûᵀ or B = Û spans a part; what is left over is its nullity."""

    rows: RowSpace
    name: ClassVar[str]

    @property
    def operator(self) -> ReducedU:
        """Û."""
        return self.rows.operator

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Dimension of the space."""

    @abstractmethod
    def span(self, coefficients: Tensor) -> Tensor:
        """B of every row."""

    @abstractmethod
    def against(self, vectors: Tensor) -> Tensor:
        """Bᵀ of every row."""

    def precondition(self, vectors: Tensor) -> Tensor:
        """About (B Bᵀ)⁻¹ of every row, symmetric and positive definite; by default the identity."""
        return vectors

    @abstractmethod
    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, …) standard Gaussian vectors of the space."""

    def _gaussian(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        drawn = torch.randn(count, length, dtype=torch.float64, generator=generator)
        return drawn.to(self.operator.geometry.sources.device)


class Inputs(Side):
    """The inputs that are read at all, spanned by the rows of Û."""

    name = "inputs"

    @property
    def dimension(self) -> int:
        """Number of touched inputs."""
        return self.operator.geometry.touched

    def span(self, coefficients: Tensor) -> Tensor:
        """Ûᵀ of every row."""
        return self.operator.apply_transposed(coefficients)

    def against(self, vectors: Tensor) -> Tensor:
        """Û of every row."""
        return self.operator.apply(vectors)

    def precondition(self, vectors: Tensor) -> Tensor:
        """(WᵀW + εI)⁻¹ of every row where W can determine the inputs and is thin."""
        return self._gram_inverse(vectors) if self._gram_inverse else vectors

    @cached_property
    def _gram_inverse(self) -> Callable[[Tensor], Tensor] | None:
        return gram_inverse(self.operator) if self.rows.filters_suffice else None

    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        """Gaussian vectors that are zero on untouched inputs."""
        geometry = self.operator.geometry
        touched = (geometry.reads > 0).repeat_interleave(geometry.channels)
        return self._gaussian(count, self.operator.columns, generator) * touched


class Rows(Side):
    """The rows of Û, without relations that hold for all inputs, spanned by its columns."""

    name = "rows"

    @property
    def dimension(self) -> int:
        """Number of rows that padding leaves independent."""
        return self.rows.dimension

    def span(self, coefficients: Tensor) -> Tensor:
        """Û of every row."""
        return self.operator.apply(coefficients)

    def against(self, vectors: Tensor) -> Tensor:
        """Ûᵀ of every row."""
        return self.operator.apply_transposed(vectors)

    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        """Gaussian vectors projected onto the rows' space."""
        return self.rows.project(self._gaussian(count, self.operator.height, generator))


def smaller_side(rows: RowSpace) -> Side:
    """The side of the smaller dimension, which has the smaller nullity."""
    return min(Inputs(rows), Rows(rows), key=lambda side: side.dimension)
