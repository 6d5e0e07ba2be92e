"""What a step's release is made of under each hypothesis, and how releases are scored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.dp.mechanisms import AdditiveMechanism, Mechanism
from gradaudit.dp.randomness import reproducible
from gradaudit.dp.theory import FloatArray
from gradaudit.progress import Advance

IntArray = NDArray[np.intp]

_QUICK_BYTES = 1 << 20
"""Releases of a chunk on the CPU: what its caches hold."""
_WORKING_COPIES = 6
"""Bytes that scoring takes for each byte of a chunk's releases, at most."""
_CANCELLED = 1e-9
"""A mean shift below this share of the largest is rounding."""


@dataclass(frozen=True)
class Board:
    """The gradients of the batch, by what the private value is.

    Attributes:
        null: (elements,) gradient of the record with its value under the null hypothesis.
        alternatives: (values, elements) with each value that the alternative draws from, evenly.
        companions: (others, elements) gradients of the rest of the batch.
    """

    null: Tensor
    alternatives: Tensor
    companions: Tensor

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
        """The record's gradient and its companions', (records, elements), as clients hold them."""
        return torch.cat([record[None], self.companions]).to(torch.float32)


@dataclass(frozen=True)
class Ruler:
    """Scores releases by how far they are on the way from one hypothesis to the other.

    Attributes:
        centre: (elements,) the release under the null hypothesis without noise.
        towards: (elements,) from there to the (mean) release under the alternative; not zero.
        laplace: scale of Laplace noise, where that is known to be the noise.
    """

    centre: Tensor
    towards: Tensor
    laplace: float | None = None

    def projection(self, offsets: Tensor) -> Tensor:
        """The likelihood ratio of releases less the centre, (count, elements) to (count,).

        The projection onto ``towards`` for Gaussian (or unknown) noise, in units of the gradient;
        Σ(|g̃ − g0| − |g̃ − g1|)/b for Laplace noise.
        """
        if self.laplace is not None:
            return (offsets.abs() - (offsets - self.towards).abs()).sum(dim=1) / self.laplace
        length: Tensor = torch.linalg.vector_norm(self.towards)
        return offsets @ (self.towards / length)

    def scores(self, releases: Tensor) -> FloatArray:
        """Projection and distance of releases (count, elements), as an array (2, count)."""
        offsets = releases.to(self.centre.dtype, copy=True).sub_(self.centre)
        distance = torch.linalg.vector_norm(offsets, dim=1)
        found: FloatArray = torch.stack([self.projection(offsets), distance]).cpu().numpy()
        return found


def shifts(mechanism: AdditiveMechanism, board: Board) -> Tensor:
    """How far each alternative moves the noiseless release, (values, elements)."""
    centre = mechanism.mean_of(board.null, board.companions)
    return mechanism.mean_of(board.alternatives, board.companions) - centre


def known_ruler(mechanism: AdditiveMechanism, board: Board) -> Ruler:
    """The ruler of a mechanism whose noiseless release is known."""
    centre = mechanism.mean_of(board.null, board.companions)
    laplace = mechanism.scale(board.records) if mechanism.noise == "laplace" else None
    return Ruler(centre, way(shifts(mechanism, board), board), laplace)


def way(moved: Tensor, board: Board) -> Tensor:
    """Where a ruler looks: the mean of what the alternatives move the release by, (elements,).

    Where they cancel in the mean (any direction gives a valid statistic, but that one no power) it
    is the largest of them; where none moves the release, that of the gradients themselves.

    Args:
        moved: (values, elements), as ``shifts``.
        board: the gradients, which differ.
    """
    for candidates in (moved, board.alternatives - board.null):
        lengths = torch.linalg.vector_norm(candidates, dim=1)
        mean: Tensor = candidates.mean(dim=0)
        if torch.linalg.vector_norm(mean) > _CANCELLED * lengths.max():
            return mean
        if lengths.any():
            return candidates[lengths.argmax()]
    raise ValueError("the gradients of a game do not differ")


def releases_in_chunks(
    mechanism: Mechanism, batch: Tensor, count: int, generator: torch.Generator, memory: int
) -> Iterator[Tensor]:
    """Releases from one batch, chunk by chunk: (rows, elements) with rows bounded by memory."""
    for _, rows in _chunks(mechanism, batch, count, memory):
        yield mechanism.releases(batch, rows, generator)


def releases_interleaved(
    mechanism: Mechanism,
    batches: Sequence[Tensor],
    order: IntArray,
    generator: torch.Generator,
    memory: int,
) -> Iterator[tuple[IntArray, Tensor]]:
    """Releases of several batches in turns, chunk by chunk, and which they are.

    Code that is not known here may carry something on from one release to the next, and is asked
    for them in just this order. Releases that are known to be independent have none, and are drawn
    batch by batch.

    Args:
        mechanism: that releases.
        batches: what it releases from.
        order: (count,) index of the batch of each release.
        generator: of the mechanism's random numbers.
        memory: bytes that a chunk may take.

    Yields:
        Positions (rows,) in ``order``, and releases (rows, elements).
    """
    if not mechanism.foreign:
        for index, batch in enumerate(batches):
            own = np.flatnonzero(order == index)
            for start, rows in _chunks(mechanism, batch, len(own), memory):
                yield own[start : start + rows], mechanism.releases(batch, rows, generator)
        return
    for start, rows in _chunks(mechanism, batches[0], len(order), memory):
        turns = [
            mechanism.releases(batches[index], len(list(turn)), generator)
            for index, turn in groupby(order[start : start + rows])
        ]
        yield np.arange(start, start + rows), torch.cat(turns)


def _chunks(
    mechanism: Mechanism, batch: Tensor, count: int, memory: int
) -> Iterator[tuple[int, int]]:
    """Where chunks begin, and their rows, bounded by memory."""
    drawn = mechanism.elements_drawn(*batch.shape) * batch.element_size()
    rows = memory // (drawn * _WORKING_COPIES)
    if batch.device.type == "cpu":
        rows = min(rows, _QUICK_BYTES // drawn)
    rows = max(rows, 1)
    for start in range(0, count, rows):
        yield start, min(rows, count - start)


def score_releases(
    mechanism: Mechanism,
    batches: Sequence[Tensor],
    ruler: Ruler,
    order: IntArray,
    seed: np.random.SeedSequence,
    *,
    memory: int,
    advance: Advance,
) -> FloatArray:
    """Scores (2, count) of releases of these batches in turns; the releases are not kept."""
    scored = np.empty((2, len(order)))
    with reproducible(seed, batches[0].device) as generator:
        for which, chunk in releases_interleaved(mechanism, batches, order, generator, memory):
            scored[:, which] = ruler.scores(chunk)
            advance(len(chunk))
    return scored
