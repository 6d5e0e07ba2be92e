"""Gradient pruning: the elements of smallest magnitude are set to zero."""

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from gradaudit.defenses.base import Defense, DefenseOptions

_SMALLEST_GROUP, _LARGEST_GROUP = 4, 10
"""Elements of a group of which the maximum is ranked first: fewer gain nothing."""


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
        """(batches, elements) with all but the largest magnitudes of a row set to zero."""
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
    kept = largest(gradients.abs(), count)
    return torch.zeros_like(gradients).scatter_(1, kept, gradients.gather(1, kept))


def largest(values: Tensor, count: int) -> Tensor:
    """Indices (rows, count) of the largest of (rows, elements), in any order; of tied, whichever.

    The n largest lie in the n groups of elements whose maxima are largest, so that few values are
    ranked: the maxima, and what is in those groups.
    """
    elements = values.shape[1]
    group = min(math.isqrt(elements // count), _LARGEST_GROUP)
    if group < _SMALLEST_GROUP:
        return values.topk(count, dim=1, sorted=False).indices
    groups = elements // group
    grouped = group * groups
    maxima = values[:, :grouped].reshape(-1, group, groups).amax(dim=1)
    chosen = maxima.topk(count, dim=1, sorted=False).indices
    offsets = torch.arange(0, grouped, groups, device=values.device)
    rest = torch.arange(grouped, elements, device=values.device).expand(len(values), -1)
    members = torch.cat([(chosen[:, None] + offsets[:, None]).flatten(1), rest], dim=1)
    top = values.gather(1, members).topk(count, dim=1, sorted=False).indices
    return members.gather(1, top)
