"""The directions that a Jacobian's norms are measured in: all columns, some, or Gaussian probes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Directions:
    """A chunk of directions.

    Attributes:
        vectors: (directions, …) in the shape of what is varied.
        columns: the consecutive elements that they are the unit vectors of; None where they are
            not such.
    """

    vectors: Tensor
    columns: slice | None = None


class Plan(Protocol):
    """A sequence of directions that is the same for every record."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def chunks(self, like: Tensor, size: int) -> Iterator[Directions]:
        """The directions, ``size`` at a time, in the shape, type and place of ``like``."""
        ...


@dataclass(frozen=True)
class Columns:
    """Every element's unit vector: the sum of squares over them is ‖J‖_F²."""

    count: int

    def __len__(self) -> int:
        """How many there are."""
        return self.count

    def chunks(self, like: Tensor, size: int) -> Iterator[Directions]:
        """Unit vectors of consecutive elements."""
        for start in range(0, self.count, size):
            at = range(start, min(start + size, self.count))
            yield Directions(_units(at, like), slice(at.start, at.stop))


@dataclass(frozen=True)
class SampledColumns:
    """Unit vectors of elements drawn without replacement."""

    elements: tuple[int, ...]

    @classmethod
    def draw(cls, count: int, of: int, seed: int) -> SampledColumns:
        """``count`` of the elements ``range(of)``."""
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SAMPLED,)))
        return cls(tuple(int(k) for k in generator.choice(of, size=count, replace=False)))

    def __len__(self) -> int:
        """How many there are."""
        return len(self.elements)

    def chunks(self, like: Tensor, size: int) -> Iterator[Directions]:
        """Unit vectors."""
        for start in range(0, len(self), size):
            yield Directions(_units(self.elements[start : start + size], like))


@dataclass(frozen=True)
class Gaussian:
    """Standard normal vectors v: E‖Jv‖² = ‖J‖_F². The k-th depends on the seed and k alone."""

    count: int
    seed: int

    def __len__(self) -> int:
        """How many there are."""
        return self.count

    def chunks(self, like: Tensor, size: int) -> Iterator[Directions]:
        """Probes."""
        for start in range(0, self.count, size):
            probes = [self._probe(k, like) for k in range(start, min(start + size, self.count))]
            yield Directions(torch.stack(probes))

    @cached_property
    def _root(self) -> int:
        sequence = np.random.SeedSequence(self.seed, spawn_key=(_PROBES,))
        return int(sequence.generate_state(1, np.uint64)[0])

    def _probe(self, k: int, like: Tensor) -> Tensor:
        generator = np.random.Generator(np.random.Philox(key=np.array([self._root, k], np.uint64)))
        return (
            torch.from_numpy(generator.standard_normal(like.numel())).to(like).reshape(like.shape)
        )


_PROBES, _SAMPLED = 1, 2


def _units(elements: range | tuple[int, ...], like: Tensor) -> Tensor:
    at = torch.as_tensor(elements, device=like.device).unsqueeze(1)
    return like.new_zeros(len(elements), like.numel()).scatter_(1, at, 1).reshape(-1, *like.shape)
