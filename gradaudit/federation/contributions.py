"""Contributions of clients, and their mean."""

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor


class Contribution(NamedTuple):
    """What a client contributes: a gradient, or its training's difference as one; and buffers.

    The update is by the name of every trainable parameter, in its shape; of several local steps it
    is (w₀ − w_E)/rate. Buffers are the model's after the client's forward passes, the number of its
    records is its weight, and the loss their mean, as they were trained on.
    """

    update: dict[str, Tensor]
    buffers: dict[str, Tensor]
    records: int
    loss: float


def weighted_mean(contributions: Iterable[Contribution]) -> Contribution:
    """The mean of the clients' contributions, each weighted by its number of records.

    Counts among the buffers (``num_batches_tracked``) are not averaged: the largest is kept.
    """
    return reduce(_with, contributions)


def _with(mean: Contribution, sent: Contribution) -> Contribution:
    records = mean.records + sent.records
    share = sent.records / records
    update = {n: _between(t, sent.update[n], share) for n, t in mean.update.items()}
    buffers = {n: _between(t, sent.buffers[n], share) for n, t in mean.buffers.items()}
    return Contribution(update, buffers, records, mean.loss + share * (sent.loss - mean.loss))


def _between(before: Tensor, new: Tensor, share: float) -> Tensor:
    """Moves a running mean towards a value; exact where they are equal; counts take the larger."""
    if not before.is_floating_point():
        return torch.maximum(before, new)
    return before + share * (new - before)
