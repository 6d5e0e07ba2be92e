"""Which reconstructed record stands for which original: an update does not order its records."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def assigned(truth: Tensor, candidates: Tensor) -> Tensor:
    """Reconstructed records in the order of the originals that they come closest to as a whole.

    The assignment with the smallest total squared error (Kuhn 1955), for each candidate.

    Args:
        truth: (k, …).
        candidates: (candidates, k, …).

    Returns:
        (candidates, k, …), ``candidates`` reordered.
    """
    return torch.stack([batch[order_of(truth, batch)] for batch in candidates])


def order_of(truth: Tensor, batch: Tensor) -> Tensor:
    """(k,) for each original, the index of the record in ``batch`` that stands for it."""
    costs = squared_distances(truth, batch)
    costs = torch.nan_to_num(costs, nan=torch.finfo(costs.dtype).max ** 0.5)
    _, columns = linear_sum_assignment(costs.cpu().numpy())
    return torch.from_numpy(columns.astype(np.int64)).to(batch.device)


def squared_distances(truth: Tensor, records: Tensor) -> Tensor:
    """(originals, found) squared L2 distances between records, float64, free of cancellation."""
    left, right = truth.flatten(1).double(), records.flatten(1).double()
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist").square()


def labels_in_common(truth: NDArray[np.int64], candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many labels two lists share, each as often as it occurs in both.

    This is the best that any assignment of the one list to the other can reach.

    Args:
        truth: (k,).
        candidates: (candidates, k).

    Returns:
        (candidates,).
    """
    classes = np.union1d(truth, candidates)
    counts = (candidates[:, :, None] == classes).sum(axis=1)
    wanted = (truth[:, None] == classes).sum(axis=0)
    shared: NDArray[np.int64] = np.minimum(counts, wanted).sum(axis=1)
    return shared
