"""Whose record is it: matching records against what was rebuilt from each participant's update.

L. Fan et al., "Rethinking privacy preserving deep learning" (2020), algorithm 6: each record of a
query set goes to the participant behind the reconstruction that it is nearest to.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.attacks.reconstruction.matching import order_of, squared_distances

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Traced:
    """Where every record of the query set was traced to.

    Attributes:
        participants: (records,) participant behind the nearest reconstruction; −1 where none.
        items: (records,) number of that reconstruction; −1 where there is none.
    """

    participants: IntArray
    items: IntArray


def trace(queries: Tensor, reconstructed: Tensor, owners: IntArray) -> Traced:
    """Assign every record of a query set to its nearest reconstruction, by squared error.

    Args:
        queries: (records, …).
        reconstructed: (items, …); an item that is not finite is nobody's.
        owners: (items,) the participant that each item was rebuilt from.
    """
    usable = reconstructed.flatten(1).isfinite().all(dim=1).nonzero().squeeze(1)
    if not len(usable):
        nobody = np.full(len(queries), -1, dtype=np.int64)
        return Traced(nobody, nobody)
    nearest = squared_distances(queries, reconstructed[usable]).argmin(dim=1)
    items = usable[nearest].cpu().numpy().astype(np.int64)
    return Traced(owners[items], items)


def own_items(truth: Tensor, reconstructed: Tensor, batches: int) -> Tensor:
    """Reconstructions in the order of the records that they stand for, batch by batch.

    Algorithm 6 knows which reconstruction belongs to which record; an update does not order its
    records, so that the optimal assignment inside each batch says it. For the score alone.
    """
    pairs = zip(truth.chunk(batches), reconstructed.chunk(batches), strict=True)
    return torch.cat([found[order_of(records, found)] for records, found in pairs])
