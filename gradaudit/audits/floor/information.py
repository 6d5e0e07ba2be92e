"""Fisher information of a noisy update, Ã = C^½ E[JᵀJ] C^½ / σ², from drawn records.

Records are drawn in units: those of one have in common what a ``Genie`` tells, and the label. Each
unit is kept in two halves, so that one can be held against the other.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.floor.drawn import PriorSample
from gradaudit.audits.floor.jacobians import jacobian_products
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release, clipped
from gradaudit.core.randomness import torch_rng
from gradaudit.executors.workers import ALONE, Workers
from gradaudit.gradients.differentiation import Batch, Differentiation, checked, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import names_of
from gradaudit.gradients.trace import Trace
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Advance

_HELD = 1 << 30
"""Bytes that all layers' information may take; more records then go into each unit."""
_AT_ONCE = 128
_WORKING_SET = 96 << 20
_ELEMENT, _COPIES = 8, 8
Sums = dict[str, Tensor]
"""Sums of products over the records of each cell, (cells, probes, probes), by layer."""


@dataclass(frozen=True)
class Information:
    """Information of an update on the records of some units; additive, and scaled by 1/σ².

    Attributes:
        halves: Ã averaged over half of a unit, (units, 2, probes, probes).
        precision: T⁻¹ of what is left unknown of a record given what its unit has in common.
    """

    halves: Tensor
    precision: Tensor

    def __add__(self, other: Self) -> Self:
        """The information of both updates together, under independent noise."""
        return replace(self, halves=self.halves + other.halves)

    def __mul__(self, factor: float) -> Self:
        """The information under noise of this much less variance."""
        return replace(self, halves=self.halves * factor)

    def __truediv__(self, variance: float) -> Self:
        """The information under noise of this variance, if this one is for variance one."""
        return self * (1 / variance)

    @property
    def units(self) -> Tensor:
        """Averages over units, (units, probes, probes)."""
        return self.halves.mean(dim=1)

    @property
    def mean(self) -> Tensor:
        """The average over all, (probes, probes)."""
        return self.halves.mean(dim=(0, 1))

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite."""
        return bool(self.halves.isfinite().all())


def sum_of_layers(informations: Iterable[Information]) -> Information:
    """The information of one or more layers together."""
    return reduce(add, informations)


def layer_information(
    target: Target,
    layers: Sequence[Layer],
    prior: GaussianPrior,
    labels: Tensor,
    *,
    shape: Sequence[int],
    seed: int,
    genie_of: Target | None = None,
    clips: Sequence[Release] = (),
    memory: int = 1 << 30,
    advance: Advance = lambda _: None,
    workers: Workers = ALONE,
) -> dict[str, Information]:
    """C^½ E[JᵀJ] C^½ of every layer's gradient, for noise of variance one, from drawn records.

    Args:
        target: the model with its loss; left as it is.
        layers: with biases where these are shared, as ``layers_of(model, with_bias=True)``.
        prior: what records are drawn from.
        labels: (records, …), four or more, of as many records to draw; see ``PriorSample``.
        shape: of one record.
        seed: of the records and of random directions.
        genie_of: the model whose gradients say what the genie gives away, so that the records are
            the same for several targets and their information adds up; the target itself without.
        clips: what is clipped together before the noise; nothing without.
        memory: bytes that a chunk of records may take.
        advance: called with the number of records that are done.
        workers: who share in the records.

    Raises:
        AuditError: the gradients cannot be differentiated by the records.
        NotApplicable: records have no gradients of their own.
    """
    most = _HELD // (_ELEMENT * 2 * len(prior.counts) ** 2 * len(layers))
    view, genie = (
        FunctionalModel.of(of, dtype=torch.float64, seed=seed)
        for of in (target, genie_of or target)
    )
    names = names_of(layers)
    sample = PriorSample.of(genie, names, prior, labels, shape=shape, seed=seed, most=most)
    inputs, labels = view.cast(sample.records), view.cast(sample.labels)
    trace = Trace.of(view, names, inputs[:1], labels[:1])
    batch = Batch(trace, inputs, inputs, labels, range(len(inputs)))
    way, cells = (
        checked(fastest(batch, "point"), batch, "point"),
        sample.cells.to(batch.points.device),
    )
    how = way, tuple(layers), prior, tuple(clips), seed
    chunks = _chunks(batch, layers, prior, min(_WORKING_SET, memory // 4))
    tasks = [
        _Part(batch.part(at), cells[at], some, *how).sums
        for at, some in _whole_cells(sample.cells, chunks)
    ]
    products = workers.share(tasks, advance)
    return {
        name: _averaged(torch.cat([sums[name] for sums in products]), sample)
        for name in products[0]
    }


@dataclass(frozen=True)
class _Part:
    """Records of whole cells, which are taken chunk by chunk.

    Attributes:
        batch: the records.
        cells: which cell each is in, ascending.
        chunks: of the records, by their numbers among all.
    """

    batch: Batch
    cells: Tensor
    chunks: Sequence[slice]
    way: Differentiation
    layers: Sequence[Layer]
    prior: GaussianPrior
    clips: Sequence[Release]
    seed: int

    def sums(self, advance: Advance) -> Sums:
        """Compute the cells' sums of C^½ JᵀJ C^½."""
        sums: Sums = {}
        first, cells, points = self.chunks[0].start, self.cells - self.cells[0], self.batch.points
        count = int(cells[-1]) + 1
        for chunk in self.chunks:
            at = slice(chunk.start - first, chunk.stop - first)
            drawn = self.prior.probes(torch_rng(self.seed, "floor", "probes", chunk.start))
            asked = drawn.to(points).reshape(-1, *points.shape[1:])
            each = _ELEMENT * _COPIES * max(1, _whole(self.batch))
            at_once = min(_AT_ONCE, max(1, _WORKING_SET // each))
            moved = jacobian_products(self.batch.part(at), self.way, asked, self.layers, at_once)
            for name, found in clipped(moved, self.layers, self.clips).items():
                zeros = found.new_zeros(count, *found.shape[1:])
                sums.setdefault(name, zeros).index_add_(0, cells[at], self.prior.kept(found))
            advance(chunk.stop - chunk.start)
        return {name: kept.cpu() for name, kept in sums.items()}


def _whole_cells(cells: Tensor, chunks: Iterable[slice]) -> Iterator[tuple[slice, list[slice]]]:
    """Records, and the chunks that they are, cut where a cell ends with a chunk."""
    some: list[slice] = []
    for chunk in chunks:
        some.append(chunk)
        if chunk.stop == len(cells) or cells[chunk.stop] != cells[chunk.stop - 1]:
            yield slice(some[0].start, chunk.stop), some
            some = []


def _averaged(sums: Tensor, sample: PriorSample) -> Information:
    sizes = torch.bincount(sample.cells, minlength=len(sums)).to(sums)
    halves = (sums / sizes[:, None, None]).reshape(-1, 2, *sums.shape[1:])
    precision = torch.eye(sums.shape[-1], dtype=sums.dtype)
    leading = len(sample.genie.precision)
    precision[:leading, :leading] = sample.genie.precision
    return Information(halves, precision)


def _chunks(
    batch: Batch, layers: Sequence[Layer], prior: GaussianPrior, memory: int
) -> Iterator[slice]:
    """Records that are taken at once: as many as fit, or one where each has its own directions."""
    moving = sum(math.prod(site.shape) + math.prod(site.seen) for site in batch.trace.sites)
    moving += _whole(batch)
    largest = max(layer.parameters for layer in layers)
    bytes_each = _ELEMENT * len(prior.counts) * (_COPIES * moving + 4 * largest)
    size = 1 if prior.grouped else max(1, memory // bytes_each)
    for start in range(0, len(batch.records), size):
        yield slice(start, min(start + size, len(batch.records)))


def _whole(batch: Batch) -> int:
    """Count the elements of the parameters whose gradients are formed as a whole."""
    return sum(batch.trace.view.parameters[name].numel() for name in batch.trace.whole)
