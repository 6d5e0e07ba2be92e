"""The variational information bottleneck as a module."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.defenses.modules.attachment import Attachment


class Bottleneck(Attachment):
    """h ~ N(μ(x), diag σ²(x)), with one fully connected layer for μ and log σ².

    Args:
        features: size of the input, and of the representation.
        generator: of the fresh weights, drawn like ``nn.Linear``'s.

    Attributes:
        weight: (2 · features, features): the rows of μ, then those of log σ².
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
        mean, log_variance = F.linear(features, self.weight, self.bias).chunk(2, dim=1)
        divergence = kl_from_standard_normal(mean, log_variance).unsqueeze(1)
        if not self.training:
            return mean, divergence
        return mean + (log_variance / 2).exp() * torch.randn_like(mean), divergence


def kl_from_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(μ, diag σ²) ‖ N(0, I)) = ½ Σ (μ² + σ² − 1 − log σ²) in nats, (records,)."""
    terms = mean.square() + log_variance.expm1() - log_variance
    return terms.sum(dim=1) / 2


def uniform(bound: float, *shape: int, generator: torch.Generator) -> Tensor:
    """Even draws from ±bound, in float64 so that every dtype gets the same numbers."""
    return (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1) * bound
