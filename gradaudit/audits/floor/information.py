"""Fisher information of a noisy update, Ã = C^½ E[JᵀJ] C^½ / σ², from drawn records.

Records are drawn in units: those of one have in common what a ``Genie`` tells, and the label. Each
unit is kept in two halves, so that one can be held against the other.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gradaudit.audits.floor.drawn import PriorSample
from gradaudit.audits.floor.jacobians import jacobian_products
from gradaudit.audits.floor.matrix_weights import LOCAL, LocalInformation, local_information
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release, clipped, of_release
from gradaudit.audits.floor.smoothness import bends
from gradaudit.core.randomness import torch_rng
from gradaudit.executors.workers import ALONE, Workers
from gradaudit.gradients.differentiation import Batch, Differentiation, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import names_of
from gradaudit.gradients.trace import Trace
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Advance

_HELD = 1 << 30
"""Bytes that all layers' information may take; more records then go into each unit."""
_LOCAL_EACH, _LOCAL_MATRICES = 2, 4
"""Records of a unit whose local information is kept, and matrices of each."""
_AT_ONCE = 128
_WORKING_SET = 96 << 20
_ELEMENT, _COPIES = 8, 8


@dataclass(frozen=True)
class Information:
    """Information of an update on the records of some units; additive, and scaled by 1/σ².

    Attributes:
        halves: Ã averaged over half of a unit, (units, 2, probes, probes).
        precision: T⁻¹ of what is left unknown of a record given what its unit has in common.
        local: that of single records; None where it may jump.
    """

    halves: Tensor
    precision: Tensor
    local: LocalInformation | None = None

    def __add__(self, other: Self) -> Self:
        """The information of both updates together, under independent noise."""
        both = self.local and other.local and self.local + other.local
        return replace(self, halves=self.halves + other.halves, local=both)

    def __mul__(self, factor: float) -> Self:
        """The information under noise of this much less variance."""
        local = self.local and self.local * factor
        return replace(self, halves=self.halves * factor, local=local)

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
    view = FunctionalModel.of(target, dtype=torch.float64, seed=seed)
    local = _LOCAL_EACH * _LOCAL_MATRICES * min(prior.leading, LOCAL) ** 2
    most = _HELD // (_ELEMENT * (2 * len(prior.counts) ** 2 + local) * len(layers))
    genie = FunctionalModel.of(genie_of or target, dtype=torch.float64, seed=seed)
    sample = PriorSample.of(
        genie, names_of(layers), prior, labels, shape=shape, seed=seed, most=most
    )
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
    prior: GaussianPrior,
    sample: PriorSample,
    *,
    seed: int,
    clips: Sequence[Release] = (),
    memory: int = 1 << 30,
    advance: Advance = lambda _: None,
    workers: Workers = ALONE,
) -> dict[str, Information]:
    """The information of a sample; see ``layer_information``."""
    inputs, labels = view.cast(sample.records), view.cast(sample.labels)
    trace = Trace.of(view, names_of(layers), inputs[:1], labels[:1])
    batch = Batch(trace, inputs, inputs, labels, range(len(inputs)))
    way, cells = fastest(batch, "point"), sample.cells.to(batch.points.device)
    room = min(_WORKING_SET, memory // 4)
    how = way, tuple(layers), prior, tuple(clips), seed
    kept = sample.first(_LOCAL_EACH) & (not bends(view, inputs, labels))
    tasks = [
        partial(_sums, _Part(batch.part(at), cells[at], kept[at], chunks, *how))
        for at, chunks in _whole_cells(sample.cells, _chunks(batch, layers, prior, room))
    ]
    parts = workers.share(tasks, advance)
    return {
        name: _averaged(
            torch.cat([part.products[name] for part in parts]),
            [local for part in parts for local in part.local.get(name, ())],
            sample,
        )
        for name in parts[0].products
    }


@dataclass(frozen=True)
class _Part:
    """Records of whole cells, which are taken chunk by chunk.

    Attributes:
        batch: the records.
        cells: which cell each is in, ascending.
        kept: mask of those whose local information is kept.
        chunks: of the records, by their numbers among all.
    """

    batch: Batch
    cells: Tensor
    kept: Tensor
    chunks: Sequence[slice]
    way: Differentiation
    layers: Sequence[Layer]
    prior: GaussianPrior
    clips: Sequence[Release]
    seed: int

    def local(self, at: slice, start: int) -> dict[str, LocalInformation]:
        """The local information of those of a chunk's records that are kept; empty without any."""
        kept = self.kept[at].nonzero().flatten()
        if not len(kept):
            return {}
        chunk = self.batch.part(at)
        parts = {name: getattr(chunk, name)[kept] for name in ("records", "points", "targets")}
        return local_information(
            replace(chunk, **parts, indices=range(len(kept))),
            self.cells[at][kept] // 2,
            self.way,
            self.layers,
            self.prior,
            self.clips,
            torch_rng(self.seed, "floor", "signs", start),
        )


class _Sums(NamedTuple):
    """Sums over the records of each cell, and what is kept of single records.

    Attributes:
        products: by layer, of C^½ JᵀJ C^½, (cells, probes, probes).
        local: by layer, of the records of some chunks.
    """

    products: dict[str, Tensor]
    local: dict[str, list[LocalInformation]]


def _sums(part: _Part, advance: Advance) -> _Sums:
    """Sums over the records of a part."""
    first, sums = part.chunks[0].start, _Sums({}, {})
    cells = part.cells - part.cells[0]
    count, points = int(cells[-1]) + 1, part.batch.points
    for chunk in part.chunks:
        at = slice(chunk.start - first, chunk.stop - first)
        drawn = part.prior.probes(torch_rng(part.seed, "floor", "probes", chunk.start)).to(points)
        asked = drawn.reshape(-1, *points.shape[1:])
        moved = jacobian_products(part.batch.part(at), part.way, asked, part.layers, _AT_ONCE)
        for release in part.clips or (None,):
            chosen = of_release(moved, part.layers, release)
            bound = release.moving if release and chosen else None
            for name, found in clipped(chosen, bound).items():
                zeros = found.new_zeros(count, *found.shape[1:])
                kept = part.prior.kept(found)
                sums.products.setdefault(name, zeros).index_add_(0, cells[at], kept)
        for name, local in part.local(at, chunk.start).items():
            sums.local.setdefault(name, []).append(local)
        advance(chunk.stop - chunk.start)
    return sums._replace(products={name: kept.cpu() for name, kept in sums.products.items()})


def _whole_cells(cells: Tensor, chunks: Iterable[slice]) -> Iterator[tuple[slice, list[slice]]]:
    """Records, and the chunks that they are, cut where a cell ends with a chunk."""
    some: list[slice] = []
    for chunk in chunks:
        some.append(chunk)
        if chunk.stop == len(cells) or cells[chunk.stop] != cells[chunk.stop - 1]:
            yield slice(some[0].start, chunk.stop), some
            some = []


def _averaged(sums: Tensor, local: Sequence[LocalInformation], sample: PriorSample) -> Information:
    """The averages over cells of sums over each, with what is kept of single records."""
    sizes = torch.bincount(sample.cells, minlength=len(sums)).to(sums)
    halves = (sums / sizes[:, None, None]).reshape(-1, 2, *sums.shape[1:])
    precision = torch.eye(sums.shape[-1], dtype=sums.dtype)
    leading = len(sample.genie.precision)
    precision[:leading, :leading] = sample.genie.precision
    return Information(halves, precision, LocalInformation.together(local) if local else None)


def _chunks(
    batch: Batch, layers: Sequence[Layer], prior: GaussianPrior, memory: int
) -> Iterator[slice]:
    """Records that are taken at once: as many as fit, or one where each has its own directions."""
    moving = sum(math.prod(site.shape) + math.prod(site.seen) for site in batch.trace.sites)
    largest = max(layer.parameters for layer in layers)
    bytes_each = _ELEMENT * len(prior.counts) * (_COPIES * moving + 4 * largest)
    size = 1 if prior.grouped else max(1, memory // bytes_each)
    for start in range(0, len(batch.records), size):
        yield slice(start, min(start + size, len(batch.records)))
