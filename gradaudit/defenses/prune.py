"""Gradient pruning: the elements of smallest magnitude are set to zero."""

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from gradaudit.defenses.base import Defense, DefenseOptions

_BITS = {torch.float32: np.int32, torch.float64: np.int64}
_DISTINCT = 1 << 16
"""Noughts in a row that get bits of their own, at least."""


class PruneOptions(DefenseOptions):
    """Options of pruning."""

    share: float = Field(..., ge=0, lt=1, description="Share of the elements that is removed.")


class Prune(Defense[PruneOptions]):
    """g̃_j = g_j where |g_j| is among the largest of its parameter tensor, else 0.

    Of every parameter tensor of n elements the round(share · n) of smallest magnitude are removed,
    exactly so many also where magnitudes are tied (of tied elements, whichever), but never all.
    The share is that of each tensor and not of the update: Li et al. 2024 (section 6.1) take the
    baseline from Zhu et al. 2019, who take it from deep gradient compression (Lin et al. 2018,
    algorithm 1), which finds a threshold for every layer.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), section 6.1, defense 1, share 0.99.
    """

    name = "prune"
    summary = "Remove a share of each tensor's elements, those of smallest magnitude."
    example = "prune:0.99"
    Options = PruneOptions
    positional: ClassVar[str | None] = "share"

    def apply(self, gradients: Tensor, *, records: int, generator: torch.Generator) -> Tensor:
        """Set all but the largest magnitudes of each row of (batches, elements) to zero."""
        elements = gradients.shape[1]
        return keep_largest(gradients, elements - round(self.options.share * elements))


def keep_largest(gradients: Tensor, count: int) -> Tensor:
    """Rows (batches, elements) with all but ``count`` (at least one) elements set to zero.

    Those of largest magnitude are kept; of tied ones, whichever.
    """
    elements = gradients.shape[1]
    count = max(1, min(count, elements))
    if count == elements:
        return gradients.clone()
    magnitudes = gradients.detach().abs()
    least, largest_removed = bounds(magnitudes, count)
    kept = torch.ge(magnitudes, least, out=magnitudes)
    kept = kept * gradients if gradients.requires_grad else kept.mul_(gradients)
    for row in ((least == largest_removed) & (least > 0)).nonzero()[:, 0].tolist():
        tied = (kept[row].abs() == least[row]).nonzero()[:, 0]
        kept[row, tied[: int(kept[row].count_nonzero()) - count]] = 0
    return kept


def bounds(magnitudes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The least of the ``count`` largest magnitudes of each row, and the largest of all others.

    On the CPU numpy partitions a row several times as fast as torch ranks its values. It does so by
    their bits, which are in the order of the magnitudes, and noughts, which are many where units
    are dead and which a partition is slow on, get bits of their own, below any normal number.

    Args:
        magnitudes: (rows, elements), none negative.
        count: at least one, less than there are elements.

    Returns:
        Two of (rows, 1).
    """
    if magnitudes.device.type != "cpu" or magnitudes.dtype not in _BITS:
        ranked = magnitudes.topk(count + 1, dim=1).values
        return ranked[:, -2:-1], ranked[:, -1:]
    elements, bits = magnitudes.shape[1], _BITS[magnitudes.dtype]
    least_bits = np.arange(min(_DISTINCT, elements), dtype=bits)
    given = magnitudes.numpy().view(bits)
    parted = np.empty_like(given)
    for start in range(0, elements, _DISTINCT):
        some = slice(start, start + _DISTINCT)
        np.maximum(given[:, some], least_bits[: elements - start], out=parted[:, some])
    removed = elements - count
    parted.partition(removed, axis=1)
    both = parted[:, removed], parted[:, :removed].max(axis=1)
    least, largest = (torch.from_numpy(each[:, None].copy()) for each in both)
    return least.view(magnitudes.dtype), largest.view(magnitudes.dtype)
