"""What a noisy update tells of records, Ã = C^½ E[JᵀJ] C^½ / σ², from drawn ones.

Records are drawn in units: those of one have in common what a ``Genie`` tells, and the label. Each
unit is kept in two halves, so that one can be held against the other.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Self

import torch
from torch import Tensor

from gradaudit.floors.drawn import Drawn
from gradaudit.floors.jacobians import Pull, pulls
from gradaudit.floors.prior import Prior
from gradaudit.floors.release import Release, clipped
from gradaudit.gradients.differentiation import Batch, Differentiation, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import names_of
from gradaudit.gradients.trace import Trace
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Advance
from gradaudit.randomness import torch_rng
from gradaudit.workers import ALONE, Workers

_HELD = 1 << 30
"""Bytes that all layers' information may take; more records then go into each unit."""
_AT_ONCE = 128
_WORKING_SET = 96 << 20
_ELEMENT, _COPIES = 8, 8


@dataclass(frozen=True)
class Information:
    """What an update tells of the records of some units. It adds up, and scales with 1/σ².

    Attributes:
        halves: Ã averaged over half of a unit, (units, 2, probes, probes).
        precision: T⁻¹ of what is left unknown of a record given what its unit has in common.
    """

    halves: Tensor
    precision: Tensor

    def __add__(self, other: Self) -> Self:
        """That of both updates together, under independent noise."""
        return replace(self, halves=self.halves + other.halves)

    def __mul__(self, factor: float) -> Self:
        """Under noise of this much less variance."""
        return replace(self, halves=self.halves * factor)

    def __truediv__(self, variance: float) -> Self:
        """Under noise of this variance, if it is for noise of variance one."""
        return replace(self, halves=self.halves / variance)

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
        """Whether it holds nothing but numbers."""
        return bool(self.halves.isfinite().all())


def sum_of_layers(informations: Iterable[Information]) -> Information:
    """The information of one or more layers together."""
    return reduce(add, informations)


def informations(
    target: Target,
    layers: Sequence[Layer],
    prior: Prior,
    labels: Tensor,
    *,
    shape: Sequence[int],
    seed: int,
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
        labels: (records, …), four or more, of as many records to draw; see ``Drawn``.
        shape: of one record.
        seed: of the records and of random directions.
        clips: what is clipped together before the noise; nothing without.
        memory: bytes that a chunk of records may take.
        advance: told of records that are done.
        workers: who share in the records.

    Raises:
        AuditError: the gradients cannot be differentiated by the records.
        NotApplicable: records have no gradients of their own.
    """
    view = FunctionalModel.of(target, dtype=torch.float64, seed=seed)
    most = _HELD // (2 * _ELEMENT * len(prior.counts) ** 2 * len(layers))
    sample = Drawn.of(view, names_of(layers), prior, labels, shape=shape, seed=seed, most=most)
    return measured(
        view,
        layers,
        prior,
        sample,
        seed=seed,
        clips=clips,
        memory=memory,
        advance=advance,
        workers=workers,
    )


def measured(
    view: FunctionalModel,
    layers: Sequence[Layer],
    prior: Prior,
    sample: Drawn,
    *,
    seed: int,
    clips: Sequence[Release] = (),
    memory: int = 1 << 30,
    advance: Advance = lambda _: None,
    workers: Workers = ALONE,
) -> dict[str, Information]:
    """That of a sample; see ``informations``."""
    batch = _batch(view, layers, sample)
    way, cells = fastest(batch, "point"), sample.cells.to(batch.points.device)
    room = min(_WORKING_SET, memory // 4)
    how = way, tuple(layers), prior, tuple(clips), seed
    tasks = [
        partial(_sums, _Part(batch.part(at), cells[at], chunks, *how))
        for at, chunks in _whole_cells(sample.cells, _chunks(batch, layers, prior, room))
    ]
    parts = workers.share(tasks, advance)
    return {name: _averaged(torch.cat([part[name] for part in parts]), sample) for name in parts[0]}


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
    prior: Prior
    clips: Sequence[Release]
    seed: int


def _sums(part: _Part, advance: Advance) -> dict[str, Tensor]:
    """By layer, the sums of C^½ JᵀJ C^½ over the records of each cell, (cells, probes, probes)."""
    first, sums = part.chunks[0].start, dict[str, Tensor]()
    cells = part.cells - part.cells[0]
    for chunk in part.chunks:
        at = slice(chunk.start - first, chunk.stop - first)
        drawn = part.prior.probes(torch_rng(part.seed, "floor", "probes", chunk.start))
        points = part.batch.points
        probes = drawn.to(points, non_blocking=True).reshape(-1, *points.shape[1:])
        moved = pulls(part.batch.part(at), part.way, probes, part.layers, _AT_ONCE)
        for release in part.clips or (None,):
            chosen = _of_release(moved, part.layers, release)
            bound = release.moving if release and chosen else None
            for name, products in clipped(chosen, bound).items():
                zeros = products.new_zeros(int(cells[-1]) + 1, *products.shape[1:])
                kept = sums.setdefault(name, zeros)
                kept.index_add_(0, cells[at], part.prior.kept(products))
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


def _averaged(sums: Tensor, sample: Drawn) -> Information:
    sizes = torch.bincount(sample.cells, minlength=len(sums)).to(sums)
    halves = (sums / sizes[:, None, None]).reshape(-1, 2, *sums.shape[1:])
    precision = torch.eye(sums.shape[-1], dtype=sums.dtype)
    leading = len(sample.genie.precision)
    precision[:leading, :leading] = sample.genie.precision
    return Information(halves, precision)


def _batch(view: FunctionalModel, layers: Sequence[Layer], sample: Drawn) -> Batch:
    inputs, labels = view.cast(sample.records), view.cast(sample.labels)
    trace = Trace.of(view, names_of(layers), inputs[:1], labels[:1])
    return Batch(trace, inputs, inputs, labels, range(len(inputs)))


def _of_release(
    moved: Mapping[str, Pull], layers: Sequence[Layer], release: Release | None
) -> dict[str, Pull]:
    """The layers that a release has, all without one."""
    if release is None:
        return dict(moved)
    names = [layer.name for layer in layers if set(layer.parameter_names) <= release.members]
    return {name: moved[name] for name in names}


def _chunks(batch: Batch, layers: Sequence[Layer], prior: Prior, memory: int) -> Iterator[slice]:
    """Records that are taken at once: as many as fit, or one where each has its own directions."""
    moving = sum(math.prod(site.shape) + math.prod(site.seen) for site in batch.trace.sites)
    largest = max(layer.parameters for layer in layers)
    bytes_each = _ELEMENT * len(prior.counts) * (_COPIES * moving + 4 * largest)
    size = 1 if prior.grouped else max(1, memory // bytes_each)
    for start in range(0, len(batch.records), size):
        yield slice(start, min(start + size, len(batch.records)))
