"""Distributed selective SGD: only the elements of largest magnitude are shared."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from gradaudit.defenses.base import Defense, DefenseOptions, Scope
from gradaudit.defenses.prune import keep_largest


class SelectiveOptions(DefenseOptions):
    """Options of selective sharing."""

    share: float = Field(..., gt=0, le=1, description="Share of the elements that is sent.")


class Selective(Defense[SelectiveOptions]):
    """g̃_j = g_j where |g_j| is among the largest of the whole update, else 0.

    Of an update of n elements the round(share · n), at least one, of largest magnitude are sent.
    They are chosen among all parameters in common: Shokri and Shmatikov sort the whole vector of
    gradients and upload the share θ_u from the top, so a layer may send nothing at all. (Pruning,
    in contrast, goes by tensors.) With ``layers`` it is the share of these layers' elements.

    Source: R. Shokri and V. Shmatikov, "Privacy-preserving deep learning" (2015), section 5.2, the
    criterion "largest values"; L. Fan et al., "Rethinking privacy preserving deep learning" (2020),
    section 2 and table 11.
    """

    name = "selective"
    summary = "Send a share of the update's elements, those of largest magnitude."
    example = "selective:0.05"
    Options = SelectiveOptions
    positional: ClassVar[str | None] = "share"
    scope: ClassVar[Scope] = "update"

    def apply(self, gradients: Tensor, *, records: int, generator: torch.Generator) -> Tensor:
        """Set all but the largest magnitudes of each row of (batches, elements) to zero."""
        return keep_largest(gradients, round(self.options.share * gradients.shape[1]))
