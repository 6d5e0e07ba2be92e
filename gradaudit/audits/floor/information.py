"""Fisher information of a noisy update, Ã = C^½ E[JᵀJ] C^½ / σ², from drawn records.

Records are drawn in units: those of one have in common what a ``Genie`` tells, and the label. Each
unit is kept in two halves, so that one can be held against the other.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gradaudit.audits.floor.drawn import PriorSample, WeightedAverages, Weights
from gradaudit.audits.floor.jacobians import JacobianProducts, jacobian_products
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release, clipped
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
_MATRICES = 5
"""Matrices of a unit and layer: its halves, and one for each level of the weights."""
_AT_ONCE = 128
_WORKING_SET = 96 << 20
_ELEMENT, _COPIES = 8, 8


@dataclass(frozen=True)
class Information:
    """Information of an update on the records of some units; additive, and scaled by 1/σ².

    Attributes:
        halves: Ã averaged over half of a unit, (units, 2, probes, probes).
        precision: T⁻¹ of what is left unknown of a record given what its unit has in common.
        weighted: the same where records weigh less the more they give away; None where all are
            alike.
    """

    halves: Tensor
    precision: Tensor
    weighted: WeightedAverages | None = None

    def __add__(self, other: Self) -> Self:
        """The information of both updates together, under independent noise."""
        both = self.weighted and other.weighted and self.weighted + other.weighted
        return replace(self, halves=self.halves + other.halves, weighted=both)

    def __mul__(self, factor: float) -> Self:
        """The information under noise of this much less variance."""
        weighted = self.weighted and self.weighted * factor
        return replace(self, halves=self.halves * factor, weighted=weighted)

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
        clips: what is clipped together before the noise; nothing without.
        memory: bytes that a chunk of records may take.
        advance: called with the number of records that are done.
        workers: who share in the records.

    Raises:
        AuditError: the gradients cannot be differentiated by the records.
        NotApplicable: records have no gradients of their own.
    """
    view = FunctionalModel.of(target, dtype=torch.float64, seed=seed)
    most = _HELD // (_MATRICES * _ELEMENT * len(prior.counts) ** 2 * len(layers))
    sample = PriorSample.of(
        view, names_of(layers), prior, labels, shape=shape, seed=seed, most=most
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
    how = way, tuple(layers), prior, tuple(clips), sample.genie.levels, seed
    tasks = [
        partial(_sums, _Part(batch.part(at), cells[at], chunks, *how))
        for at, chunks in _whole_cells(sample.cells, _chunks(batch, layers, prior, room))
    ]
    parts = workers.share(tasks, advance)
    known, values = (torch.cat(of) for of in zip(*(part[1:] for part in parts), strict=True))
    return {
        name: _averaged(torch.cat([part.products[name] for part in parts]), known, values, sample)
        for name in parts[0].products
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
    levels: Tensor
    seed: int


class _Sums(NamedTuple):
    """Sums over the records of each cell.

    Attributes:
        products: by layer, of C^½ JᵀJ C^½ and of it times q² for each level,
            (cells, 1 + levels, probes, probes).
        known: of (∇q − q z)(∇q − q z)ᵀ, (cells, levels, probes, probes).
        values: of q, (cells, levels).
    """

    products: dict[str, Tensor]
    known: Tensor
    values: Tensor


def _sums(part: _Part, advance: Advance) -> _Sums:
    """Sums over the records of a part."""
    first, products = part.chunks[0].start, dict[str, Tensor]()
    cells = part.cells - part.cells[0]
    count, probes = int(cells[-1]) + 1, len(part.prior.counts)
    points = part.batch.points
    known = points.new_zeros(count, len(part.levels), probes, probes)
    values = points.new_zeros(count, len(part.levels))
    for chunk in part.chunks:
        at = slice(chunk.start - first, chunk.stop - first)
        drawn = part.prior.probes(torch_rng(part.seed, "floor", "probes", chunk.start)).to(points)
        asked = drawn.reshape(-1, *points.shape[1:])
        moved = jacobian_products(part.batch.part(at), part.way, asked, part.layers, _AT_ONCE)
        z = part.prior.along(drawn, points[at].flatten(1))
        weights = Weights.of(list(moved.values()), part.levels, z)
        squares = part.prior.kept(weights.squares(part.prior.still))
        known.index_add_(0, cells[at], squares.transpose(0, 1))
        values.index_add_(0, cells[at], weights.values.mT)
        factors = torch.cat([torch.ones_like(weights.values[:1]), weights.values.square()]).mT
        for release in part.clips or (None,):
            chosen = _of_release(moved, part.layers, release)
            bound = release.moving if release and chosen else None
            for name, found in clipped(chosen, bound).items():
                kept = factors[:, :, None, None] * part.prior.kept(found).unsqueeze(1)
                zeros = kept.new_zeros(count, *kept.shape[1:])
                products.setdefault(name, zeros).index_add_(0, cells[at], kept)
        advance(chunk.stop - chunk.start)
    on_cpu = {name: kept.cpu() for name, kept in products.items()}
    return _Sums(on_cpu, known.cpu(), values.cpu())


def _whole_cells(cells: Tensor, chunks: Iterable[slice]) -> Iterator[tuple[slice, list[slice]]]:
    """Records, and the chunks that they are, cut where a cell ends with a chunk."""
    some: list[slice] = []
    for chunk in chunks:
        some.append(chunk)
        if chunk.stop == len(cells) or cells[chunk.stop] != cells[chunk.stop - 1]:
            yield slice(some[0].start, chunk.stop), some
            some = []


def _averaged(sums: Tensor, known: Tensor, values: Tensor, sample: PriorSample) -> Information:
    """The averages over cells, and with weights over units, of sums over each cell."""
    sizes = torch.bincount(sample.cells, minlength=len(sums)).to(sums)
    halves = (sums[:, 0] / sizes[:, None, None]).reshape(-1, 2, *sums.shape[2:])
    precision = torch.eye(sums.shape[-1], dtype=sums.dtype)
    leading = len(sample.genie.precision)
    precision[:leading, :leading] = sample.genie.precision
    each = sizes.reshape(-1, 2).sum(dim=1)

    def over_units(of: Tensor) -> Tensor:
        units = of.reshape(-1, 2, *of.shape[1:]).sum(dim=1)
        return (units / each.reshape(-1, *[1] * (units.dim() - 1))).transpose(0, 1)

    weighted = WeightedAverages(over_units(sums[:, 1:]), over_units(known), over_units(values))
    return Information(halves, precision, weighted if len(sample.genie.levels) else None)


def _of_release(
    moved: Mapping[str, JacobianProducts], layers: Sequence[Layer], release: Release | None
) -> dict[str, JacobianProducts]:
    """The layers that a release has, all without one."""
    if release is None:
        return dict(moved)
    names = [layer.name for layer in layers if set(layer.parameter_names) <= release.members]
    return {name: moved[name] for name in names}


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
