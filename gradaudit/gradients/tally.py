"""Adding up the norms of every layer's tangents over passes of directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gradaudit.gradients.directions import Columns, Directions, Gaussian, Plan, SampledColumns
from gradaudit.gradients.norms import Norm, Norms, joined, over_directions, side_by_side
from gradaudit.gradients.sources import Source
from gradaudit.models.target import Layer

NORMS: tuple[Norm, ...] = ("f", "1", "inf")


class Pass(NamedTuple):
    """Directions and the norms to take over them.

    Attributes:
        plan: the directions.
        norms: what to measure; F comes squared.
        total: whether all directions together make one number, else each makes a sample.
        factor: what a sample is multiplied by to estimate the whole without bias.
    """

    plan: Plan
    norms: tuple[Norm, ...]
    total: bool
    factor: float = 1.0

    def reduced(self, norms: Norms) -> Norms:
        """A chunk's norms as they are kept."""
        if self.total:
            return over_directions(norms)
        return {norm: x * self.factor for norm, x in norms.items()}

    def merged(self, norms: Norms, more: Norms) -> Norms:
        """The norms of two chunks of the directions."""
        return joined([norms, more]) if self.total else side_by_side([norms, more])


def exactly(size: int) -> list[Pass]:
    """All norms, over all columns."""
    return [Pass(Columns(size), NORMS, total=True)]


def by_probes(size: int, probes: int, seed: int) -> list[Pass]:
    """F by Gaussian probes and the 1-norm by as many sampled columns; exactly, if that is less."""
    if probes >= size:
        return exactly(size)
    columns = SampledColumns.draw(probes, size, seed)
    return [
        Pass(Gaussian(probes, seed), ("f",), total=False),
        Pass(columns, ("1",), total=False, factor=size),
    ]


@dataclass(frozen=True)
class LayerNorms:
    """One layer's Jacobian norms, not yet divided by anything.

    Attributes:
        samples: by norm, (records, samples) whose mean over samples is the norm (F: its square);
            one sample where it is exact.
        ranges: max − min over the elements of G_l, (records,).
        methods: how the tangents were found.
    """

    samples: Norms
    ranges: Tensor
    methods: frozenset[str]

    @classmethod
    def of_all(cls, parts: Sequence[LayerNorms]) -> LayerNorms:
        """One part's records after the other's."""
        return cls(
            {norm: torch.cat([part.samples[norm] for part in parts]) for norm in parts[0].samples},
            torch.cat([part.ranges for part in parts]),
            frozenset().union(*(part.methods for part in parts)),
        )


@dataclass(frozen=True)
class Tally:
    """The norms of one source's records, as more and more directions come in."""

    source: Source
    layers: Sequence[Layer]
    _norms: dict[tuple[str, Pass], Norms] = field(default_factory=dict)

    def add(self, taken: Pass, directions: Directions) -> int:
        """Take in a chunk of a pass's directions; returns for how many records and directions."""
        norms = self.source.norms(directions, taken.norms)
        for layer in self.layers:
            key = layer.name, taken
            more = taken.reduced(joined(norms[name] for name in layer.parameter_names))
            self._norms[key] = taken.merged(self._norms[key], more) if key in self._norms else more
        return len(directions.vectors) * len(self.source.point.batch.records)

    def norms(self) -> dict[str, LayerNorms]:
        """By layer, what has come in."""
        by_layer: dict[str, Norms] = {layer.name: {} for layer in self.layers}
        for (name, _), norms in self._norms.items():
            by_layer[name] |= norms
        return {
            layer.name: LayerNorms(
                by_layer[layer.name],
                self.source.point.ranges(layer.parameter_names),
                frozenset({self.source.title}),
            )
            for layer in self.layers
        }
