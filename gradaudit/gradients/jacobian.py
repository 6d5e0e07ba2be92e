"""Norms of the Jacobians of every layer's gradient, record by record.

J_l = ∂G_l/∂x (Mo et al. 2022, eq. 7) and ∂G_l/∂y (Mo et al. 2021, eq. 9), with G_l the gradient of
one record's loss with respect to layer l's parameters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from gradaudit.gradients import sizes
from gradaudit.gradients.differentiation import Batch, Differentiation, Mapped, Variable
from gradaudit.gradients.directions import Gaussian
from gradaudit.gradients.fast.piecewise import PiecewiseLinear
from gradaudit.gradients.fast.tables import Tabulated, tables_pay
from gradaudit.gradients.sources import General, Point, Source
from gradaudit.gradients.tally import LayerNorms, Pass, Tally
from gradaudit.models.target import Layer
from gradaudit.progress import Advance

_WORKING_SET = 96 << 20
"""Bytes of a chunk of records and directions: more does not make it faster, as long as what does
not depend on the record is computed once for a few of them, and what does not depend on the
direction too."""
_RECORDS = 16
_SHARED = 16
_TABULATED = 128


@dataclass(frozen=True)
class Jacobians:
    """Measures the Jacobians of some records' gradients.

    Attributes:
        batch: the records.
        way: how the model is differentiated.
        by: what by, the input or the labels.
        layers: whose gradients.
        memory: bytes that may be taken.
        seed: of the direction that piecewise linearity is tested in.
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

    def norms(self, passes: Sequence[Pass], advance: Advance) -> dict[str, LayerNorms]:
        """The norms of every layer's Jacobian, by layer.

        Args:
            passes: what to measure.
            advance: is told of every record's every direction.
        """
        found: list[dict[str, LayerNorms]] = []
        _keep_freed_memory()
        with torch.no_grad():
            for sources, chunk in self._sources(passes):
                tallies = [Tally(source, self.layers) for source in sources]
                for each in passes:
                    for directions in each.plan.chunks(self.batch.variable(self.by)[0], chunk):
                        for tally in tallies:
                            advance(tally.add(each, directions))
                found += [tally.norms() for tally in tallies]
        return {name: LayerNorms.of_all([part[name] for part in found]) for name in found[0]}

    def _sources(self, passes: Sequence[Pass]) -> Iterator[tuple[Sequence[Source], int]]:
        """Sources of tangents of a few records each, and for how many directions at once.

        Sources that come together are asked for the same directions in turn.
        """
        trace = self.batch.trace
        linear = self._may_be_linear(passes)
        taken = sizes.record_bytes(trace) + (
            sizes.linear_bytes(trace, self._outputs) if linear else 0
        )
        for at in _slices(len(self.batch.records), min(_RECORDS, self.memory // 4 // taken)):
            source = self._source(self.batch.part(at), linear=linear)
            linear = isinstance(source, PiecewiseLinear)
            yield from self._parts(source, passes)

    def _source(self, batch: Batch, *, linear: bool) -> Source:
        general = General(Point.of(batch, self.way), self.way, self.by)
        if not linear:
            return general
        (test,) = Gaussian(1, self.seed + 1).chunks(batch.points[0], 1)
        return PiecewiseLinear.of(general, test.vectors[0]) or general

    def _may_be_linear(self, passes: Sequence[Pass]) -> bool:
        """Whether it would pay if the network were piecewise linear."""
        trace = self.batch.trace
        if self.by != "point" or trace.whole or not isinstance(self.way, Mapped):
            return False
        few = self._outputs <= sum(len(each.plan) for each in passes)
        return few and sizes.linear_bytes(trace, self._outputs) <= self.memory // 4

    @cached_property
    def _outputs(self) -> int:
        """How many outputs a record has."""
        outputs, _ = self.batch.trace.responses(self.batch.points[0], self.batch.records[0])
        return outputs.numel()

    def _parts(
        self, source: Source, passes: Sequence[Pass]
    ) -> Iterator[tuple[Sequence[Source], int]]:
        """A source for few enough records at once."""
        records = len(source.point.batch.records)
        if isinstance(source, PiecewiseLinear) and passes[0].total:
            parts = [source.part(at) for at in _slices(records, 1)]
            if tables_pay(source, self.memory // 4):
                for part in parts:
                    yield [Tabulated.of(part)], _TABULATED
                return
        pair = sizes.pair_bytes(self.batch.trace)
        pairs = max(
            min(_WORKING_SET, self.memory // 4) // pair, min(_SHARED, self.memory // 2 // pair)
        )
        chunk = max(1, min(_SHARED, pairs))
        yield [source.part(at) for at in _slices(records, pairs // chunk)], chunk


def _slices(count: int, size: int) -> list[slice]:
    size = max(1, size)
    return [slice(start, start + size) for start in range(0, count, size)]


def _keep_freed_memory() -> None:
    """Free a block of just under 32 MiB, the largest that glibc learns from.

    Until it has seen one that large, it gives every freed block back to the system, and a chunk
    of work spends more time on page faults than on arithmetic.
    """
    torch.empty(31 << 20, dtype=torch.uint8)
