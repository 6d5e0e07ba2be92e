"""The secret polarization network."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from gradaudit.defenses.attachment import (
    Attachment,
    ChosenColumn,
    attached,
    attachments,
    last_linear,
    uniform,
)
from gradaudit.defenses.base import Defense, DefenseOptions
from gradaudit.models.losses import Loss


class SpnOptions(DefenseOptions):
    """Options of the secret polarization network."""

    bits: int = Field(64, ge=1, le=1 << 16, description="Length K of the classes' secret codes.")
    alpha: float = Field(0.1, ge=0, description="Factor α₂ on the polarization loss (α₁ is 1).")
    margin: float = Field(1.0, ge=1, description="Margin m of the polarization loss.")
    head: float | None = Field(
        None,
        gt=0,
        description="Bound B of the private layer's start, uniform(−B, B) (without it 1/√inputs).",
    )


class Spn(Defense[SpnOptions]):
    """L = L_CE(u, y) + α₂ Σ_k max(m − v_k t_k, 0) with t the secret code of the record's class.

    A second, private fully connected layer reads the input of the model's last fully connected
    layer and gives v ∈ R^K. Every client draws a code t_c ∈ {−1, +1}^K for every class and keeps
    codes and layer to itself: they are never in its update, and an adversary knows neither. The
    gradients of the shared layers carry the secret term. The polarization loss is that of eq. 18,
    of the true class's code alone; eq. 5 as printed sums over all codes whatever the label, which
    would be a constant of the class. What it adds to the gradients goes with the private layer's
    weights: the paper draws a model's weights from uniform(−0.3, 0.3) (table 2), which is
    ``head=0.3`` if that includes them. α₁ = 1 as in the paper's experiments (appendix C), though
    section 3.1 has α₁ + α₂ = 1. With ``layers`` the private layer reads the input of the last fully
    connected layer that matches.

    Source: L. Fan et al., "Rethinking privacy preserving deep learning" (2020), section 3 and
    appendices B and C.
    """

    name = "spn"
    summary = "Add secret gradients from a private second head (secret polarization network)."
    example = "spn:bits=64,alpha=0.1"
    Options = SpnOptions
    positional: ClassVar[str | None] = "bits"
    changes_model: ClassVar[bool] = True

    def modify(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """A copy of the model with a private head, whose weights and codes are drawn."""
        o = self.options
        layer, linear = last_linear(model, str(self), o.layers)
        outputs = last_linear(model, str(self))[1].out_features
        head = PolarizationHead(linear.in_features, max(2, outputs), o.bits, o.margin, o.head)
        head.draw(generator)
        return attached(model, layer, self.name, head)

    def modified_loss(self, loss: Loss, model: nn.Module) -> Loss:
        """The loss with α₂ times the polarization loss of the true class."""
        head = next(part for part in attachments(model) if isinstance(part, PolarizationHead))
        return ChosenColumn(loss, head.extra, self.options.alpha)


class PolarizationHead(Attachment):
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

    private = True
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
    """Compute Σ_k max(m − v_k t_k, 0) (Fan et al. 2020, eq. 18) of every record and code.

    Args:
        outputs: v, (records, bits).
        codes: t, (classes, bits).
        margin: m.

    Returns:
        (records, classes).
    """
    return (margin - outputs.unsqueeze(1) * codes).relu().sum(dim=2)
