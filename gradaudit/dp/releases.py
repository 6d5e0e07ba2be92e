"""Releases of a mechanism: seeded, in chunks, in turns, and all with the same noise."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.dp.mechanisms import Mechanism
from gradaudit.errors import AuditError
from gradaudit.gradients.functional import drawing_from
from gradaudit.randomness import Seed, number, sequence, torch_rng

IntArray = NDArray[np.intp]

_QUICK_BYTES = 1 << 20
"""Releases of a chunk on the CPU: what its caches hold."""
_WORKING_COPIES = 6
"""Bytes that scoring takes for each byte of a chunk's releases, at most."""


@contextmanager
def reproducible(seed: Seed, device: torch.device) -> Iterator[torch.Generator]:
    """A generator from a seed; the global generators are seeded too, and put back afterwards.

    A mechanism should draw from the generator that it is given. One that draws from the global
    generators of torch, numpy or Python gets the same numbers in every run all the same.
    """
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        np.random.seed(sequence(seed, "numpy").generate_state(4))  # noqa: NPY002
        random.seed(number(seed, "python"))
        with drawing_from(number(seed, "torch"), device):
            yield torch_rng(seed, "mechanism", device=device)
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


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
            which = np.flatnonzero(order == index)
            for start, rows in _chunks(mechanism, batch, len(which), memory):
                yield which[start : start + rows], mechanism.releases(batch, rows, generator)
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


class CommonNoise:
    """A mechanism with its randomness held fast: the same seed for every release.

    A stand-in for the noiseless release where only differences count; differentiable where the
    mechanism is.
    """

    def __init__(self, mechanism: Mechanism, seed: Seed) -> None:
        self.mechanism = mechanism
        self.seed = seed

    def __call__(self, record: Tensor, companions: Tensor) -> Tensor:
        """Releases of the record's variants (…, elements), all with the same noise, in float64."""
        flat = record.reshape(-1, record.shape[-1])
        batches = (torch.cat([row[None], companions]).to(torch.float32) for row in flat)
        released = torch.stack([self._release(batch) for batch in batches])
        return released.to(torch.float64).view(record.shape)

    def differentiable(self, batch: Tensor) -> bool:
        """Whether a release can be differentiated by the gradients it is made from."""
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
            return self.mechanism.release(batch, generator)
