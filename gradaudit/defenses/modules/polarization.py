"""The private head of a secret polarization network."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.defenses.modules.attachment import Attachment
from gradaudit.defenses.modules.bottleneck import uniform
from gradaudit.defenses.modules.privacy import PrivatePart


class PolarizationHead(Attachment, PrivatePart):
    """v = W φ + b of the features φ, and its polarization loss by the code of every class.

    Args:
        features: size of the input.
        classes: number of codes.
        bits: length K of a code.
        margin: m of the loss.
        bound: B of the weights' law uniform(−B, B); None for that of ``nn.Linear``, 1/√features.

    Attributes:
        weight: (bits, features), frozen but while its client trains.
        bias: (bits,), likewise.
        codes: (classes, bits) of ±1, never trained.
    """

    codes: Tensor

    def __init__(
        self, features: int, classes: int, bits: int, margin: float, bound: float | None = None
    ) -> None:
        super().__init__()
        self.bound = bound or 1 / math.sqrt(features)
        self.extra = classes
        self.margin = margin
        self.weight = nn.Parameter(torch.zeros(bits, features), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(bits), requires_grad=False)
        self.register_buffer("codes", torch.ones(classes, bits))

    def draw(self, generator: torch.Generator) -> None:
        """Draw weights evenly within the bound, and codes evenly from {−1, +1}."""
        with torch.no_grad():
            self.weight.copy_(uniform(self.bound, *self.weight.shape, generator=generator))
            self.bias.copy_(uniform(self.bound, *self.bias.shape, generator=generator))
            self.codes.copy_(2 * torch.randint(2, self.codes.shape, generator=generator) - 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """The features as they are, and the losses (records, classes) of every class's code."""
        outputs = F.linear(features, self.weight, self.bias)
        return features, polarization_loss(outputs, self.codes, self.margin)


def polarization_loss(outputs: Tensor, codes: Tensor, margin: float) -> Tensor:
    """Σ_k max(m − v_k t_k, 0) (Fan et al. 2020, eq. 18) of every record and code.

    Args:
        outputs: v, (records, bits).
        codes: t, (classes, bits).
        margin: m.

    Returns:
        (records, classes).
    """
    return (margin - outputs.unsqueeze(1) * codes).relu().sum(dim=2)
