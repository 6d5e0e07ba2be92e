"""The gradients under each hypothesis, and statistics that tell the hypotheses' releases apart."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from gradaudit.audits.dp_audit.law.decision import DistanceLaw, Laws, ProjectionLaw
from gradaudit.audits.dp_audit.law.theory import FloatArray
from gradaudit.audits.dp_audit.mechanisms import Mechanism, ReleaseLaw, finite
from gradaudit.core.randomness import Seed, Word, number, sequence, torch_rng
from gradaudit.errors import AuditError
from gradaudit.executors.workers import shared_out
from gradaudit.gradients.functional import drawing_from
from gradaudit.progress import Advance

IntArray = NDArray[np.intp]
Further = Callable[[Tensor, FloatArray], FloatArray]
"""A statistic (count,) of releases (count, elements) and of their projection and distance."""

_QUICK_BYTES = 1 << 20
"""Releases of a chunk on the CPU: what its caches hold."""
_BLOCK = 1 << 14
"""Elements whose float32 sums go into one float64 sum."""
_IN_RANGE = 1e-12, 1e16
"""Distances whose squares float32 holds in full."""
_PORTION, _LEAST_RELEASES = 1 << 27, 256
"""Numbers that are drawn from one seed, or of long releases so many of them: half a second of work,
or ten times as much as it is to bring the gradients to a worker."""
_WORKING_COPIES = 6
"""Bytes that scoring takes for each byte of a chunk's releases, at most."""

_ENTROPY: Any = np.random.bit_generator
"""Where NumPy takes the seeds of generators that nobody seeds."""
_CANCELLED = 1e-9
"""A mean shift below this share of the largest is rounding."""


@contextmanager
def reproducible(seed: Seed, device: torch.device) -> Iterator[Generator]:
    """Yield a seeded generator; the global ones are seeded too, and restored afterwards.

    A mechanism should draw from the generator that it is given. One that draws from the global
    generators of torch, NumPy or Python, or from a new one of NumPy without a seed, gets the same
    numbers in every run all the same; one that asks the system for random bytes does not.
    """
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    randbits = _ENTROPY.randbits
    try:
        _ENTROPY.randbits = random.Random(number(seed, "entropy")).getrandbits
        np.random.seed(sequence(seed, "numpy").generate_state(4))  # noqa: NPY002
        random.seed(number(seed, "python"))
        with drawing_from(number(seed, "torch"), device):
            yield torch_rng(seed, "mechanism", device=device)
    finally:
        _ENTROPY.randbits = randbits
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def releases_interleaved(
    mechanism: Mechanism,
    batches: Sequence[Tensor],
    order: IntArray,
    generator: Generator,
    memory: int,
) -> Iterator[tuple[IntArray, Tensor]]:
    """Yield releases of several batches in alternation, in chunks, with their batch numbers.

    Code that is not known here may carry something on from one release to the next, and is asked
    for them in just this order. Releases that are known to be independent have none, and are drawn
    batch by batch. ``order``, (count,), is the index of the batch of each release; positions
    (rows,) in it are yielded with the releases (rows, elements) there. A chunk takes ``memory``
    bytes at most.
    """
    if not mechanism.foreign:
        for index, batch in enumerate(batches):
            which, draw = np.flatnonzero(order == index), mechanism.sampler(batch)
            for start, rows in _chunks(mechanism, batch, len(which), memory):
                yield which[start : start + rows], draw(rows, generator)
        return
    for start, rows in _chunks(mechanism, batches[0], len(order), memory):
        turns = [
            mechanism.releases(batches[index], len(list(turn)), generator)
            for index, turn in groupby(order[start : start + rows])
        ]
        chunk = finite(mechanism, batches, torch.cat(turns), start)
        yield np.arange(start, start + rows), chunk


def _chunks(
    mechanism: Mechanism, batch: Tensor, count: int, memory: int
) -> Iterator[tuple[int, int]]:
    """Divide rows into chunks that fit the memory: each chunk's start and size."""
    drawn = mechanism.elements_drawn(*batch.shape) * batch.element_size()
    rows = memory // (drawn * _WORKING_COPIES)
    if batch.device.type == "cpu":
        rows = min(rows, _QUICK_BYTES // drawn)
    rows = max(rows, 1)
    for start in range(0, count, rows):
        yield start, min(rows, count - start)


@dataclass(frozen=True)
class CommonNoise:
    """A mechanism with fixed randomness: the same seed for every release.

    A stand-in for the noiseless release where only differences count; differentiable where the
    mechanism is.
    """

    mechanism: Mechanism
    seed: Seed

    def __call__(self, record: Tensor, companions: Tensor) -> Tensor:
        """Release the record's variants (…, elements) with the same noise, in float64."""
        flat = record.reshape(-1, record.shape[-1])
        batches = (torch.cat([row[None], companions]).to(torch.float32) for row in flat)
        released = torch.stack([self._release(batch) for batch in batches])
        return released.to(torch.float64).view(record.shape)

    def of(self, batch: Tensor) -> Tensor:
        """Release a batch (records, elements) with the same noise, in float64."""
        return self._release(batch.to(torch.float32)).to(torch.float64)

    def differentiable(self, batch: Tensor) -> bool:
        """Whether a release is a differentiable function of the gradients that it is made from."""
        leaf = batch.to(torch.float32).clone().requires_grad_()
        try:
            return self._release(leaf).requires_grad
        except AuditError:  # as of code that turns to numpy
            return False

    def repeats(self, batch: Tensor) -> bool:
        """Whether the seed determines the release, as it must for the noise to cancel."""
        gradients = batch.to(torch.float32)
        return torch.equal(self._release(gradients), self._release(gradients))

    def _release(self, batch: Tensor) -> Tensor:
        with reproducible(self.seed, batch.device) as generator:
            released = self.mechanism.release(batch, generator)
        return finite(self.mechanism, [batch], released[None])[0]


@dataclass(frozen=True)
class Hypotheses:
    """The gradients of the batch for each private value.

    ``null`` is the gradient of the record with its value under the null hypothesis, (elements,),
    ``alternatives`` with each value that the alternative draws from, evenly, (values, elements),
    and ``companions`` are gradients of the rest of the batch, (others, elements). Where the record
    is ``removed``, the alternative is the companions alone, and its gradient 0.
    """

    null: Tensor
    alternatives: Tensor
    companions: Tensor
    removed: bool = False

    @property
    def records(self) -> int:
        """Size of the batch."""
        return 1 + len(self.companions)

    @property
    def elements(self) -> int:
        """Length of a gradient."""
        return len(self.null)

    @property
    def indistinguishable(self) -> bool:
        """Whether every alternative has exactly the gradient of the null hypothesis."""
        return bool((self.alternatives == self.null).all())

    def batch(self, record: Tensor) -> Tensor:
        """Join the record's gradient with its companions', (records, elements)."""
        return torch.cat([record[None], self.companions]).to(torch.float32)

    @property
    def batches(self) -> list[Tensor]:
        """The gradients of the batch under the null hypothesis, and under each alternative."""
        others = map(self.batch, self.alternatives)
        return [self.batch(self.null), *([self.companions.float()] if self.removed else others)]


@dataclass(frozen=True)
class ReleaseStatistics:
    """Computes statistics of releases: the projection, the distance, and further ones by name.

    ``centre`` is the release under the null hypothesis without noise, (elements,), ``towards``
    leads from there to the (mean) release under the alternative and is not zero, and ``laplace`` is
    the scale of Laplace noise, where that is known to be the noise.
    """

    centre: Tensor
    towards: Tensor
    laplace: float | None = None
    further: Mapping[str, Further] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rows of ``scores``."""
        return ("projection", "distance", *self.further)

    def only(self, name: str) -> Self:
        """Keep one of the further statistics, or none."""
        return replace(self, further={k: v for k, v in self.further.items() if k == name})

    def projection(self, offsets: Tensor) -> Tensor:
        """Project centred releases: the likelihood ratio, (count, elements) to (count,).

        The projection onto ``towards`` for Gaussian (or unknown) noise, in units of the gradient;
        Σ(|g̃ − g0| − |g̃ − g1|)/b for Laplace noise.
        """
        if self.laplace is not None:
            return (offsets.abs() - (offsets - self.towards).abs()).sum(dim=1) / self.laplace
        length: Tensor = torch.linalg.vector_norm(self.towards)
        return offsets @ (self.towards / length)

    def scores(self, releases: Tensor) -> FloatArray:
        """Compute every statistic, (statistics, count), of releases (count, elements).

        Those in float32 are scored in blocks of float32 with float64 sums: subtracting a centre is
        exact where a release is near it, and what the centre's own rounding moves the projection
        by is put back. Of 10⁴ to 10⁷ elements errors are below 3·10⁻⁶ of the spread of a
        projection and 10⁻⁴ of a distance's (3·10⁻³ where a centre is 10⁴ times the noise, which
        the releases' own rounding is as well). Whatever is scored, it is a fixed function of a
        release, so that bounds hold. Differences of absolute values, for Laplace noise, cancel,
        and squares of very large or small distances are beyond float32: those are taken in float64.
        """
        if self.laplace is not None or releases.dtype != torch.float32:
            scores = self._exactly(releases)
        else:
            scores = self._in_blocks(releases)
            least, most = _IN_RANGE
            if (beyond := ~((scores[1] > least) & (scores[1] < most))).any():
                scores[:, beyond] = self._exactly(releases[torch.from_numpy(beyond)])
        more = [statistic(releases, scores) for statistic in self.further.values()]
        return np.stack([*scores, *more])

    def _exactly(self, releases: Tensor) -> FloatArray:
        offsets = releases.to(self.centre.dtype, copy=True).sub_(self.centre)
        distance = torch.linalg.vector_norm(offsets, dim=1)
        return np.asarray(torch.stack([self.projection(offsets), distance]).cpu())

    def _in_blocks(self, releases: Tensor) -> FloatArray:
        ways, centres, moved = self._blocks
        parts = []
        for block, way, centre in zip(
            torch.split(releases, _BLOCK, dim=1), ways, centres, strict=True
        ):
            offsets = block - centre
            lengths = torch.linalg.vector_norm(offsets, dim=1)
            projected = offsets.mul_(way).sum(dim=1)  # alike for any number of rows
            parts.append(torch.stack([projected, lengths]))
        projections, lengths = torch.stack(parts).to(torch.float64).unbind(dim=1)
        distance = torch.linalg.vector_norm(lengths, dim=0)
        return np.asarray(torch.stack([projections.sum(dim=0) + moved, distance]).cpu())

    @cached_property
    def _blocks(self) -> tuple[Sequence[Tensor], Sequence[Tensor], float]:
        """Round direction and centre to float32, and correct the projection for the rounding."""
        direction = self.towards / torch.linalg.vector_norm(self.towards)
        way, centre = direction.float(), self.centre.float()
        moved = float((centre.double() - self.centre.double()) @ direction.double())
        return torch.split(way, _BLOCK), torch.split(centre, _BLOCK), moved


def shifts(law: ReleaseLaw, hypotheses: Hypotheses) -> Tensor:
    """Compute how far each alternative moves the noiseless release, (values, elements)."""
    centre = law.noiseless(hypotheses.null, hypotheses.companions)
    return law.noiseless(hypotheses.alternatives, hypotheses.companions) - centre


def known_statistics(law: ReleaseLaw, hypotheses: Hypotheses) -> ReleaseStatistics:
    """Make the projection for a mechanism whose law is known."""
    centre = law.noiseless(hypotheses.null, hypotheses.companions)
    laplace = law.scale if law.noise == "laplace" else None
    return ReleaseStatistics(centre, way(shifts(law, hypotheses), hypotheses), laplace)


def laws_of(law: ReleaseLaw | None, hypotheses: Hypotheses, statistics: ReleaseStatistics) -> Laws:
    """Return the laws of both statistics where the noise is Gaussian; otherwise none."""
    if law is None or law.noise != "gaussian":
        return {}
    moved = shifts(law, hypotheses)
    lengths = torch.linalg.vector_norm(moved, dim=1)
    return {
        "projection": ProjectionLaw(tuple(statistics.projection(moved).tolist()), law.scale),
        "distance": DistanceLaw(tuple(lengths.tolist()), law.scale, hypotheses.elements),
    }


def way(moved: Tensor, hypotheses: Hypotheses) -> Tensor:
    """Compute the projection's direction: the alternatives' mean shift, (elements,).

    Where they cancel in the mean (any direction gives a valid statistic, but that one no power) it
    is the largest of them; where none moves the release, that of the gradients themselves.
    ``moved`` is (values, elements), as ``shifts`` gives it, of gradients that differ.
    """
    for candidates in (moved, hypotheses.alternatives - hypotheses.null):
        lengths = torch.linalg.vector_norm(candidates, dim=1)
        mean: Tensor = candidates.mean(dim=0)
        if torch.linalg.vector_norm(mean) > _CANCELLED * lengths.max():
            return mean
        if lengths.any():
            return candidates[lengths.argmax()]
    raise ValueError("the gradients of a game do not differ")


def pilot_ruler(
    mechanism: Mechanism, hypotheses: Hypotheses, pilots: int, seed: Seed, memory: int
) -> ReleaseStatistics:
    """Make the projection for a mechanism that is known only by its releases.

    The centre is the mean of ``pilots`` releases under the null hypothesis. The direction is free
    of noise where it cancels, and else the difference of two such means; ``way`` says what it is
    where that is nothing.
    """
    null, *others = hypotheses.batches

    def mean(batch: Tensor, count: int, *words: Word) -> Tensor:
        total = torch.zeros(batch.shape[1], dtype=torch.float64, device=batch.device)
        order = np.zeros(count, np.intp)
        with reproducible(sequence(seed, *words), batch.device) as generator:
            for _, chunk in releases_interleaved(mechanism, [batch], order, generator, memory):
                total += chunk.to(torch.float64).sum(dim=0)
        return total / count

    centre, common = (
        mean(null, pilots, "null"),
        CommonNoise(mechanism, sequence(seed, "common noise")),
    )
    if common.repeats(null):
        still = common.of(null)
        moved = [common.of(batch) - still for batch in others]
    else:
        count = -(-pilots // len(others))
        moved = [mean(batch, count, "value", i) - centre for i, batch in enumerate(others)]
    return ReleaseStatistics(centre, way(torch.stack(moved), hypotheses))


def score_releases(
    mechanism: Mechanism,
    batches: Sequence[Tensor],
    statistics: ReleaseStatistics,
    order: IntArray,
    seed: Seed,
    *,
    memory: int,
    advance: Advance,
    workers: int = 1,
) -> FloatArray:
    """Compute statistics (statistics, count) of alternating releases, which are not kept.

    The workers share in portions of them, each with a seed of its own; those of code that is not
    known here are one portion.
    """
    drawn = mechanism.elements_drawn(*batches[0].shape)
    size = len(order) if mechanism.foreign else max(_LEAST_RELEASES, _PORTION // drawn)
    portions = np.split(order, range(size, len(order), size))
    seeds = [seed, *(sequence(seed, "portion", number) for number in range(1, len(portions)))]
    tasks = [
        partial(_score_portion, mechanism, batches, statistics, part, own, memory)
        for part, own in zip(portions, seeds, strict=True)
    ]
    found = shared_out(tasks, workers, advance)
    return np.concatenate(found, axis=1)


def _score_portion(
    mechanism: Mechanism,
    batches: Sequence[Tensor],
    statistics: ReleaseStatistics,
    order: IntArray,
    seed: Seed,
    memory: int,
    advance: Advance,
) -> FloatArray:
    scored = np.empty((len(statistics.names), len(order)))
    with reproducible(seed, batches[0].device) as generator:
        for which, chunk in releases_interleaved(mechanism, batches, order, generator, memory):
            scored[:, which] = statistics.scores(chunk)
            advance(len(chunk))
    return scored
