"""Scores reconstructions against the true records, their labels and their owners.

An update does not order its records: which reconstruction stands for which original is an
assignment. L. Fan et al., "Rethinking privacy preserving deep learning" (2020), call the recovery
of labels a membership attack (algorithm 5) and that of a record's owner tracing (algorithm 6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradaudit.errors import NotApplicable

IntArray = NDArray[np.int64]
WINDOW, SIGMA = 11, 1.5
_SMALLEST = 3
_C1, _C2 = 0.01**2, 0.03**2


def scores_of(truth: Tensor, reconstructed: Tensor, *, pictures: bool) -> dict[str, Tensor]:
    """Score candidate batches against the true one, each record against its match.

    Args:
        truth: (k, …) true records.
        reconstructed: (candidates, k, …), in any order inside a batch.
        pictures: whether records are (channels, height, width) in [0, 1].

    Returns:
        (candidates,) float64 for ``mse``, ``relative_error`` and, of pictures, ``psnr`` and
        ``ssim`` (from 3×3 on); means over the batch's records. NaN where a candidate is not finite.
    """
    truth = truth.detach().double()
    reconstructed = assigned(truth, reconstructed.detach().double().to(truth.device))
    scores: dict[str, Tensor] = {
        "mse": mse(truth, reconstructed).mean(dim=-1),
        "relative_error": relative_error(truth, reconstructed).mean(dim=-1),
    }
    if pictures:
        scores["psnr"] = psnr(truth, reconstructed).mean(dim=-1)
        if min(truth.shape[-2:]) >= _SMALLEST:
            scores["ssim"] = ssim(truth, reconstructed).mean(dim=-1)
    return scores


def mse(truth: Tensor, reconstructed: Tensor) -> Tensor:
    """Mean squared error of each record: (k, …) and (…, k, …) to (…, k)."""
    return _records(reconstructed - truth, truth).square().mean(dim=-1)


def relative_error(truth: Tensor, reconstructed: Tensor) -> Tensor:
    """Compute each record's ‖x̂ − x‖ / ‖x‖ (Fan et al. 2020, 4.1); infinite for x = 0 ≠ x̂."""
    missed = torch.linalg.vector_norm(_records(reconstructed - truth, truth), dim=-1)
    length = torch.linalg.vector_norm(truth.flatten(1), dim=-1)
    ratio: Tensor = torch.where(missed == 0, torch.zeros_like(missed), missed / length)
    return ratio


def psnr(truth: Tensor | ArrayLike, reconstructed: Tensor | ArrayLike) -> Tensor:
    """Compute each record's peak signal-to-noise ratio in dB, data range 1.

    −10 log10 MSE (Gonzalez and Woods, "Digital image processing"); infinite where the
    reconstruction is exact.

    >>> psnr(torch.zeros(1, 1, 4, 4), torch.full((1, 1, 4, 4), 0.1))
    tensor([20.])

    Args:
        truth: (k, …) records.
        reconstructed: (…, k, …).

    Returns:
        (…, k).
    """
    truth, reconstructed = torch.as_tensor(truth), torch.as_tensor(reconstructed)
    return -10 * mse(truth, reconstructed).log10()


def ssim(truth: Tensor | ArrayLike, reconstructed: Tensor | ArrayLike) -> Tensor:
    """Compute each picture's structural similarity, data range 1.

    Mean of (2μ_xμ_y + C₁)(2σ_xy + C₂)/((μ_x² + μ_y² + C₁)(σ_x² + σ_y² + C₂)) over windows (Wang et
    al. 2004, eq. 13): Gaussian ones of 11, σ = 1.5, population covariances, where the window fits
    whole, and over channels, as scikit-image computes it. Smaller pictures take the largest odd
    window that fits.

    >>> picture = torch.linspace(0, 1, 256).reshape(1, 1, 16, 16)
    >>> ssim(picture, picture), bool(ssim(picture, 1 - picture) < 0)
    (tensor([1.]), True)

    Args:
        truth: (k, channels, height, width) in [0, 1].
        reconstructed: (…, k, channels, height, width).

    Returns:
        (…, k).
    """
    truth, reconstructed = torch.as_tensor(truth), torch.as_tensor(reconstructed)
    lead = reconstructed.shape[:-3]
    x = truth.expand(reconstructed.shape).reshape(-1, 1, *reconstructed.shape[-2:])
    y = reconstructed.reshape(x.shape)
    window = _gaussian(window_for(tuple(reconstructed.shape[-2:])), x)
    mean_x, mean_y, xx, yy, xy = (F.conv2d(t, window) for t in (x, y, x * x, y * y, x * y))
    covariance = xy - mean_x * mean_y
    variances = xx - mean_x.square() + yy - mean_y.square()
    structure = (2 * covariance + _C2) / (variances + _C2)
    luminance = (2 * mean_x * mean_y + _C1) / (mean_x.square() + mean_y.square() + _C1)
    return (structure * luminance).reshape(*lead, -1).mean(dim=-1)


def window_for(size: tuple[int, ...]) -> int:
    """The width of SSIM's window for pictures of this height and width.

    Raises:
        NotApplicable: they are too small for a window of three.
    """
    width = min(WINDOW, *size)
    width -= 1 - width % 2
    if width < _SMALLEST:
        raise NotApplicable(f"pictures of {size[0]}×{size[1]} are too small for SSIM")
    return width


def _gaussian(width: int, like: Tensor) -> Tensor:
    offsets = torch.arange(width, dtype=like.dtype, device=like.device) - width // 2
    line = (-offsets.square() / (2 * SIGMA**2)).exp()
    return torch.outer(line, line)[None, None] / line.sum().square()


def _records(difference: Tensor, truth: Tensor) -> Tensor:
    """A difference (…, k, record) with each record as one vector."""
    lead = difference.shape[: difference.dim() - truth.dim() + 1]
    return difference.reshape(*lead, -1)


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
    """Match each original with a record in ``batch``, and return the indices (k,)."""
    costs = squared_distances(truth, batch)
    costs = torch.nan_to_num(costs, nan=torch.finfo(costs.dtype).max ** 0.5)
    _, columns = linear_sum_assignment(costs.cpu().numpy())
    return torch.from_numpy(columns.astype(np.int64)).to(batch.device)


def squared_distances(truth: Tensor, records: Tensor) -> Tensor:
    """Compute squared L2 distances (originals, found) in float64, without cancellation."""
    left, right = truth.flatten(1).double(), records.flatten(1).double()
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist").square()


def labels_in_common(truth: IntArray, candidates: IntArray) -> IntArray:
    """Count the labels that two lists share, each as often as it occurs in both.

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
    return np.asarray(np.minimum(counts, wanted).sum(axis=1))


@dataclass(frozen=True)
class TracedRecords:
    """The participant that every record of the query set was traced to.

    Attributes:
        participants: (records,) participant behind the nearest reconstruction; −1 where none.
        items: (records,) number of that reconstruction; −1 where there is none.
    """

    participants: IntArray
    items: IntArray


def trace(queries: Tensor, reconstructed: Tensor, owners: IntArray) -> TracedRecords:
    """Assign every record of a query set to its nearest reconstruction, by squared error.

    Each record goes to the participant behind that reconstruction (algorithm 6).

    Args:
        queries: (records, …).
        reconstructed: (items, …); an item that is not finite is nobody's.
        owners: (items,) the participant that each item was rebuilt from.
    """
    usable = reconstructed.flatten(1).isfinite().all(dim=1).nonzero().squeeze(1)
    if not len(usable):
        nobody = np.full(len(queries), -1, dtype=np.int64)
        return TracedRecords(nobody, nobody)
    nearest = squared_distances(queries, reconstructed[usable]).argmin(dim=1)
    items = usable[nearest].cpu().numpy().astype(np.int64)
    return TracedRecords(owners[items], items)


def own_items(truth: Tensor, reconstructed: Tensor, batches: int) -> Tensor:
    """Reconstructions in the order of the records that they stand for, batch by batch.

    Algorithm 6 knows which reconstruction belongs to which record; an update does not order its
    records, so that the optimal assignment inside each batch says it. For the score alone.
    """
    pairs = zip(truth.chunk(batches), reconstructed.chunk(batches), strict=True)
    return torch.cat([found[order_of(records, found)] for records, found in pairs])


def categorical_distance(truth: IntArray, found: IntArray | None) -> float:
    """Share of a batch's labels that are not among the recovered ones; 1 for no answer.

    Labels are compared as lists: an update does not order its records, so that labels at the same
    places say nothing of the attack. This is the smallest distance that any order has;
    ``paired_distance`` is that of the records' own order.
    """
    if found is None:
        return 1.0
    return 1.0 - float(labels_in_common(truth, found[None])[0]) / len(truth)


def paired_distance(truth: IntArray, found: IntArray | None, order: IntArray | None) -> float:
    """Share of a batch's records that are named wrong, each by its own reconstruction's label.

    It says that a label is known only where its record was rebuilt: right labels of records that
    came to nothing are in a random order, and far from the truth.

    Args:
        truth: (k,).
        found: (k,) labels in the order of the reconstructions; None for no answer.
        order: (k,) for each original, the reconstruction that stands for it; None for no answer.
    """
    if found is None or order is None:
        return 1.0
    return float((found[order] != truth).mean())
