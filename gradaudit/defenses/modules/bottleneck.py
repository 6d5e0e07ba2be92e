"""The variational information bottleneck as a module."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.defenses.modules.attachment import Attachment

_OFFSET = 5.0
"""σ = softplus(a − 5) starts near 0.007, as in Alemi et al. 2017 (section 4.2)."""


class Bottleneck(Attachment):
    """h ~ N(μ(x), diag σ²(x)), with one fully connected layer for μ and σ.

    Args:
        features: size of the input, and of the representation.
        generator: of the fresh weights, drawn like ``nn.Linear``'s.

    Attributes:
        weight: (2 · features, features): the rows of μ, then those of the scale.
        bias: (2 · features,).
    """

    extra = 1

    def __init__(self, features: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1 / math.sqrt(features)
        self.weight = nn.Parameter(uniform(bound, 2 * features, features, generator=generator))
        self.bias = nn.Parameter(uniform(bound, 2 * features, generator=generator))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """(records, features) to a representation of that shape and its KL, (records, 1)."""
        mean, scale = F.linear(features, self.weight, self.bias).chunk(2, dim=1)
        deviation = F.softplus(scale - _OFFSET)
        divergence = kl_from_standard_normal(mean, deviation).unsqueeze(1)
        if not self.training:
            return mean, divergence
        return mean + deviation * torch.randn_like(deviation), divergence


def kl_from_standard_normal(mean: Tensor, deviation: Tensor) -> Tensor:
    """KL(N(μ, diag σ²) ‖ N(0, I)) = ½ Σ (μ² + σ² − 1 − log σ²) in nats, (records,)."""
    terms = mean.square() + deviation.square() - 1 - 2 * deviation.log()
    return terms.sum(dim=1) / 2


def uniform(bound: float, *shape: int, generator: torch.Generator) -> Tensor:
    """Even draws from ±bound, in float64 so that every dtype gets the same numbers."""
    return (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1) * bound
