"""Norms of the Jacobians of every layer's gradient, record by record.

J_l = ∂G_l/∂x (Mo et al. 2022, eq. 7) and ∂G_l/∂y (Mo et al. 2021, eq. 9), with G_l the gradient of
one record's loss with respect to layer l's parameters.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gradaudit.audits.sensitivity.piecewise import PiecewiseLinear, tables_pay, tabulated
from gradaudit.executors.workers import shared_out
from gradaudit.gradients.differentiation import Batch, Differentiation, Mapped, Variable
from gradaudit.gradients.jacobian_norms import (
    Directions,
    Norm,
    Norms,
    Pass,
    gaussian,
    joined,
    one_after_the_other,
    over_directions,
    side_by_side,
)
from gradaudit.gradients.memory import device_memory, keep_freed_memory
from gradaudit.gradients.sources import FactoredGradients, General, is_formed
from gradaudit.gradients.trace import Trace
from gradaudit.models.target import Layer
from gradaudit.progress import Advance

Source = General | PiecewiseLinear
"""Gives every parameter's tangents in some directions."""

_TABULATED = 128
_COPIES = 8
"""Tensors of the size of each that comes in or out at a site, which a forward and backward pass
with tangents is taken to hold."""


class _Limits(NamedTuple):
    """The most records of a source, directions of a chunk, and bytes of a chunk.

    A chunk may take more bytes than that where it would have fewer than so many ``shared``
    directions.
    """

    records: int
    directions: int
    working_set: int
    shared: int


_ON_A_CPU = _Limits(16, 64, 96 << 20, 16)
"""More does not make it faster, as long as what does not depend on the record is computed once for
a few of them, and what does not depend on the direction too. Many directions at once help where
calls cost more than their arithmetic: a GRU of 20 steps and a small CNN take about half of the
time that chunks of 16 directions take, a fully connected network as long."""
_ON_A_GPU = _Limits(256, 64, 1 << 60, 64)
"""What fits: small chunks leave a GPU idle."""


@dataclass(frozen=True)
class LayerNorms:
    """One layer's Jacobian norms, not yet divided by anything.

    The mean over a norm's samples, (records, samples), is the norm (F: its square); one sample
    where it is exact. Ranges are max − min over the elements of G_l, (records,), and methods how
    the tangents were found.
    """

    samples: Norms
    ranges: Tensor
    methods: frozenset[str]

    @classmethod
    def of_all(cls, parts: Sequence[Self]) -> Self:
        """Join the norms of parts, one part's records after the other's."""
        return cls(
            one_after_the_other([part.samples for part in parts]),
            torch.cat([part.ranges for part in parts]),
            frozenset().union(*(part.methods for part in parts)),
        )


@dataclass(frozen=True)
class Jacobians:
    """Measures the Jacobians of some records' gradients.

    ``seed`` is that of the direction in which piecewise linearity is tested; ``memory`` bytes may
    be taken (see ``device_memory`` for a GPU).
    """

    batch: Batch
    way: Differentiation
    by: Variable
    layers: Sequence[Layer]
    memory: int = 1 << 30
    seed: int = 0

    @property
    def size(self) -> int:
        """Columns of the Jacobian: elements of one record's input or label."""
        return self.batch.variable(self.by)[0].numel()

    def norms(
        self,
        passes: Sequence[Pass],
        advance: Advance,
        workers: int = 1,
    ) -> dict[str, LayerNorms]:
        """Compute the norms of every layer's Jacobian, by layer.

        ``advance`` is called for every record's every direction; the ``workers`` share in records.
        """
        with torch.no_grad():
            linear = self._may_be_linear(passes)
            slices = self._slices(linear=linear)
            if linear and len(slices) > 1:
                first = self._source(self.batch.part(slice(1)), linear=True)
                linear = isinstance(first, PiecewiseLinear)
        tasks = [
            partial(replace(self, batch=self.batch.part(at)).of_some, passes, linear)
            for at in slices
        ]
        parts = shared_out(tasks, workers, advance)
        return {name: LayerNorms.of_all([part[name] for part in parts]) for name in parts[0]}

    @torch.no_grad()
    def of_some(
        self, passes: Sequence[Pass], linear: bool, advance: Advance
    ) -> dict[str, LayerNorms]:
        """Compute, in a worker, the norms of records whose gradients fit into memory together.

        ``linear`` says whether the network may be piecewise linear.
        """
        keep_freed_memory()
        parts: list[dict[str, LayerNorms]] = []
        for sources, chunk in self._parts(self._source(self.batch, linear=linear), passes):
            tallies = [_Tally(source, self.layers) for source in sources]
            for taken, directions in self._chunks(passes, chunk):
                for tally in tallies:
                    tally.add(taken, dict(tally.source.norms(directions, taken.norms)))
                    records = len(tally.source.point.batch.records)
                    advance(len(directions.vectors) * records)
            parts += [tally.norms() for tally in tallies]
        return {name: LayerNorms.of_all([part[name] for part in parts]) for name in parts[0]}

    def _chunks(self, passes: Sequence[Pass], size: int) -> Iterator[tuple[Pass, Directions]]:
        variable = self.batch.variable(self.by)[0]
        for taken in passes:
            for directions in taken.plan.chunks(variable, size):
                yield taken, directions

    def _slices(self, *, linear: bool) -> list[slice]:
        trace = self.batch.trace
        taken = _record_bytes(trace) + (_linear_bytes(trace, self._outputs) if linear else 0)
        return _slices(len(self.batch.records), min(self._most.records, self._room // taken))

    def _source(self, batch: Batch, *, linear: bool) -> Source:
        general = General(FactoredGradients.of(batch, self.way), self.way, self.by)
        if not linear:
            return general
        direction = gaussian(batch.points[0], self.seed, "jacobian", "linear")
        return PiecewiseLinear.of(general, direction) or general

    def _may_be_linear(self, passes: Sequence[Pass]) -> bool:
        """Whether the piecewise linear method would be faster, if the network is piecewise linear.

        In single precision none is told from others by its tangents.
        """
        trace = self.batch.trace
        exact = trace.view.dtype is torch.float64
        if not exact or self.by != "point" or trace.whole or not isinstance(self.way, Mapped):
            return False
        few = self._outputs <= sum(len(one.plan) for one in passes)
        return few and _linear_bytes(trace, self._outputs) <= self._room

    @cached_property
    def _on_the_cpu(self) -> bool:
        return self.batch.points.device.type == "cpu"

    @property
    def _most(self) -> _Limits:
        return _ON_A_CPU if self._on_the_cpu else _ON_A_GPU

    @cached_property
    def _room(self) -> int:
        return device_memory(self.batch.points.device, self.memory) // 4

    @cached_property
    def _outputs(self) -> int:
        outputs, _ = self.batch.trace.responses(self.batch.points[0], self.batch.records[0])
        return outputs.numel()

    def _parts(
        self, source: Source, passes: Sequence[Pass]
    ) -> Iterator[tuple[Sequence[Source], int]]:
        """Yield sources of few enough records, with the number of directions at once.

        Sources that come together are asked for the same directions in turn.
        """
        records = len(source.point.batch.records)
        pair = _pair_bytes(self.batch.trace, {norm for taken in passes for norm in taken.norms})
        shared = min(self._most.shared, 2 * self._room // pair)
        pairs = max(min(self._most.working_set, self._room) // pair, shared)
        chunk = max(1, min(self._most.directions, pairs))
        if isinstance(source, PiecewiseLinear) and passes[0].total and self._on_the_cpu:
            parts = [source.part(at) for at in _slices(records, 1)]
            if tables_pay(source, self._room):
                for part in parts:
                    table = tabulated(part)
                    yield ([table], _TABULATED) if table else ([part], chunk)
                return
        yield [source.part(at) for at in _slices(records, pairs // chunk)], chunk


@dataclass(frozen=True)
class _Tally:
    """Sums the norms of one source's records over chunks of directions."""

    source: Source
    layers: Sequence[Layer]
    _norms: dict[tuple[str, Pass], Norms] = field(default_factory=dict)

    def add(self, taken: Pass, norms: Mapping[str, Norms]) -> None:
        merge = joined if taken.total else side_by_side
        for layer in self.layers:
            key = layer.name, taken
            of_layer = joined(norms[name] for name in layer.parameter_names)
            more = over_directions(of_layer) if taken.total else of_layer
            more = {norm: numbers * taken.factor for norm, numbers in more.items()}
            self._norms[key] = merge([self._norms[key], more]) if key in self._norms else more

    def norms(self) -> dict[str, LayerNorms]:
        by_layer: dict[str, Norms] = {layer.name: {} for layer in self.layers}
        for (name, _), norms in self._norms.items():
            by_layer[name] |= norms
        ranges, titles = self.source.point.ranges, frozenset({self.source.title})
        return {
            layer.name: LayerNorms(by_layer[layer.name], ranges(layer.parameter_names), titles)
            for layer in self.layers
        }


def _slices(count: int, size: int) -> list[slice]:
    size = max(1, size)
    return [slice(start, start + size) for start in range(0, count, size)]


def _pair_bytes(trace: Trace, norms: Collection[Norm]) -> int:
    """Count bytes of one record's tangents in one direction, and of its largest weight gradient.

    Tangents that are not formed for these norms take none.
    """
    moving = sum(math.prod(site.shape) + math.prod(site.seen) for site in trace.sites)
    largest = 0
    for (_, use), *others in trace.uses.values():
        positions = sum((other.positions for _, other in others), use.positions)
        if is_formed(use.block, positions, norms):
            largest = max(largest, math.prod(use.block))
    return trace.view.dtype.itemsize * (_COPIES * moving + 2 * largest + 4 * _whole(trace))


def _record_bytes(trace: Trace) -> int:
    """Count bytes of one record's factors, and of its gradient by the largest weight."""
    every = [use for uses in trace.uses.values() for _, use in uses]
    factors = sum(use.groups * use.positions * (use.inputs + use.outputs) for use in every)
    largest = max((math.prod(use.block) for use in every if use.positions > 1), default=0)
    return trace.view.dtype.itemsize * 2 * (factors + largest + _whole(trace))


def _linear_bytes(trace: Trace, outputs: int) -> int:
    """Count bytes of one record's gradients of every output, for piecewise linear networks."""
    deltas = sum(math.prod(site.shape) for site in trace.sites)
    uses = [use for (_, use), *_ in trace.uses.values()]
    gradients = sum(math.prod(use.block) for use in uses if use.positions > outputs)
    return trace.view.dtype.itemsize * outputs * (_COPIES * deltas + gradients)


def _whole(trace: Trace) -> int:
    return sum(trace.view.parameters[name].numel() for name in trace.whole)
