"""Draws of other records for clients' batches."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.core.randomness import rng
from gradaudit.errors import UsageError

Indices = NDArray[np.int64]


def with_others(
    batches: Indices, records: int, others: int, pool: Indices | None, seed: int
) -> Tensor:
    """Each batch as the first of ``1 + others`` clients, (batches, clients, k) indices.

    Mo et al. 2022, V-D, mix a target's gradient with those of non-target records in this way.

    Args:
        batches: (batches, k) indices of records.
        records: how many there are.
        others: how many other clients.
        pool: the records of the others, who draw k each, with replacement; None is all that are
            in no batch. Or what each batch's others have drawn, (batches, others, k).
        seed: of the draws.

    Raises:
        UsageError: there are none in the pool.
        ValueError: what is drawn already is not of this shape.
    """
    alone = torch.from_numpy(np.asarray(batches, dtype=np.int64))[:, None]
    if not others:
        return alone
    if pool is None:
        pool = np.setdiff1d(np.arange(records), batches)
    if not len(pool):
        raise UsageError(
            f"--others {others}: every record is in a target's batch, none is left for other "
            "clients; give more records"
        )
    count, size = batches.shape
    if pool.ndim > 1:
        if pool.shape != (count, others, size):
            raise ValueError(f"other clients' records of shape {pool.shape} for {batches.shape}")
        return torch.cat([alone, torch.from_numpy(pool)], dim=1)
    drawn = rng(seed, "sharing", "others").integers(len(pool), size=(count, others, size))
    return torch.cat([alone, torch.from_numpy(pool[drawn])], dim=1)


def draws_of_others(
    batches: Indices, others: int, pool: Indices, generator: np.random.Generator
) -> Indices:
    """Draw records for each batch's other clients from its own pool, outside the batch.

    Args:
        batches: (batches, k) indices of records of the pool, none twice in a batch.
        others: how many other clients.
        pool: indices of records, ascending; more than k.
        generator: of the draws, which are with replacement.

    Returns:
        (batches, others, k) indices.
    """
    count, size = batches.shape
    taken = np.sort(np.searchsorted(pool, batches), axis=1) - np.arange(size)
    drawn = generator.integers(len(pool) - size, size=(count, others * size))
    passed = np.zeros_like(drawn)
    for place in range(size):
        passed += drawn >= taken[:, place, None]
    return np.asarray(pool[drawn + passed].reshape(count, others, size))


def at_most(records: Indices, count: int, seed: int) -> Indices:
    """At most so many of these records, at random, in order."""
    if len(records) <= count:
        return records
    chosen = rng(seed, "sharing", "records").choice(len(records), count, replace=False)
    return records[np.sort(chosen)]


def batches_of(records: Indices, size: int, count: int, seed: int) -> Tensor:
    """Draw as many batches as records, at most ``count``: (batches, 1, size) indices of records.

    Records are drawn with replacement; batches of one are the records themselves.
    """
    if size == 1:
        return torch.from_numpy(at_most(records, count, seed))[:, None, None]
    shape = (min(len(records), count), 1, size)
    drawn = rng(seed, "sharing", "batches").integers(len(records), size=shape)
    return torch.from_numpy(records[drawn])


def shares_of(batches: Tensor, weights: Tensor | None) -> Tensor:
    """Share of each record in its batch's gradient Σ w g / Σ w: (…, k), like the batches.

    The weights w are found by the batches' indices; None where all count alike.
    """
    if weights is None:
        return torch.full((1,), 1 / batches.shape[-1], dtype=torch.float64).expand(batches.shape)
    chosen = weights.cpu().double()[batches]
    return chosen / chosen.sum(dim=-1, keepdim=True)
