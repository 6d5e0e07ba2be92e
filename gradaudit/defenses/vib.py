"""The variational information bottleneck before the last layer."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from gradaudit.defenses.attachment import (
    Attachment,
    SummedColumns,
    attached,
    last_linear,
    uniform,
)
from gradaudit.defenses.base import Defense, DefenseOptions
from gradaudit.models.losses import Loss


class VibOptions(DefenseOptions):
    """Options of the bottleneck."""

    beta: float = Field(0.01, ge=0, description="Factor β on the divergence in the loss.")


class Vib(Defense[VibOptions]):
    """L_VIB = L + β · KL(p(h|x) ‖ N(0, I)) with h ~ p(h|x) = N(μ(x), diag σ²(x)) in the model.

    A fully connected layer, as wide as the input of the model's last fully connected layer, gives
    μ and log σ² of a representation of the same size, which the last layer then reads. In training
    mode h = μ + σ ⊙ n with n ~ N(0, I) is drawn for every record, in evaluation mode h = μ. The
    divergence is ½ Σ_j (μ_j² + σ_j² − 1 − log σ_j²), a sum over the representation. The bottleneck
    is trained and shared like every other layer. With ``layers`` it stands before the last fully
    connected layer that matches.

    Source: A. Alemi et al., "Deep variational information bottleneck" (2017), as used by Z. Li et
    al., "Analyzing inference privacy risks through gradients in machine learning" (2024), section
    6.1, defense 4, with β = 0.01. Neither paper says where the layer stands.
    """

    name = "vib"
    summary = "Pass a noisy, bounded representation to the last layer (information bottleneck)."
    example = "vib:beta=0.01"
    Options = VibOptions
    positional: ClassVar[str | None] = "beta"
    changes_model: ClassVar[bool] = True
    in_eval: ClassVar[str] = "draws no noise"

    def modify(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """A copy of the model with a bottleneck, whose weights the generator draws."""
        layer, linear = last_linear(model, str(self), self.options.layers)
        return attached(model, layer, self.name, Bottleneck(linear.in_features, generator))

    def modified_loss(self, loss: Loss, model: nn.Module) -> Loss:
        """The loss with β times the divergence."""
        return SummedColumns(loss, 1, self.options.beta)


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
        """Map (records, features) to a representation of that shape and its KL, (records, 1)."""
        mean, log_variance = F.linear(features, self.weight, self.bias).chunk(2, dim=1)
        divergence = kl_from_standard_normal(mean, log_variance).unsqueeze(1)
        if not self.training:
            return mean, divergence
        return mean + (log_variance / 2).exp() * torch.randn_like(mean), divergence


def kl_from_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(μ, diag σ²) ‖ N(0, I)) = ½ Σ (μ² + σ² − 1 − log σ²) in nats, (records,)."""
    terms = mean.square() + log_variance.expm1() - log_variance
    return terms.sum(dim=1) / 2
