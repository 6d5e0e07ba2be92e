"""Dropout as something hung before a layer."""

import torch.nn.functional as F
from torch import Tensor

from gradaudit.defenses.modules.attachment import Attachment


class DroppedInputs(Attachment):
    """Inputs dropped with probability p and scaled by 1/(1 − p), in training mode."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """(records, …) with some elements zero; there is nothing to add to the loss."""
        return F.dropout(features, self.p, self.training), None
