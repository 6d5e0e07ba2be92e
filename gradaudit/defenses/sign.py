"""SignSGD: only the sign of every element is shared."""

import torch
from torch import Tensor

from gradaudit.defenses.base import Defense, DefenseOptions


class Sign(Defense[DefenseOptions]):
    """g̃_j = sign(g_j), with sign(0) = 0.

    Source: J. Bernstein et al., "signSGD: compressed optimisation for non-convex problems" (2018);
    Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning" (2024),
    section 6.1, defense 2.
    """

    name = "sign"
    summary = "Share only the sign of every element."
    example = "sign"

    def apply(self, gradients: Tensor, *, records: int, generator: torch.Generator) -> Tensor:
        """Replace the elements of (batches, elements) by their signs −1, 0 and 1."""
        return gradients.sign()
