"""Dropout before a layer, drawn afresh for every record."""

from fnmatch import fnmatchcase
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from gradaudit.defenses.attachment import Attachment, attached, last_linear
from gradaudit.defenses.base import Defense, DefenseOptions
from gradaudit.models.target import layers_of

LAST = "last"


class DropoutOptions(DefenseOptions):
    """Options of dropout."""

    p: float = Field(..., gt=0, lt=1, description="Probability that an input is dropped.")
    layers: str = Field(
        LAST,
        description="Glob of the layers before which inputs are dropped (without it the "
        "last fully connected layer).",
    )


class Dropout(Defense[DropoutOptions]):
    """x̃_j = x_j m_j / (1 − p) with m_j ~ Bernoulli(1 − p), for the inputs x of a layer.

    It acts in training mode only. Without ``layers`` it stands before the last fully connected
    layer; with them before every layer that matches, as Mo et al. 2022 protect the layers that
    leak most.

    Source: N. Srivastava et al., "Dropout: a simple way to prevent neural networks from
    overfitting" (2014); F. Mo et al., "Quantifying and localizing usable information leakage from
    neural network gradients" (2022), section I.
    """

    name = "dropout"
    summary = "Drop inputs of the last fully connected layer, or of chosen ones, at random."
    example = "dropout:p=0.5"
    Options = DropoutOptions
    positional: ClassVar[str | None] = "p"
    changes_model: ClassVar[bool] = True
    in_eval: ClassVar[str] = "does nothing"

    def defends(self, parameter: str) -> bool:
        """Whether it stands before the layer of this parameter, or may."""
        return self.options.layers == LAST or super().defends(parameter)

    def modify(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """A copy of the model that drops inputs in training mode."""
        if self.options.layers == LAST:
            chosen = [last_linear(model, str(self))[0]]
        else:
            names = [layer.name for layer in layers_of(model)]
            chosen = [name for name in names if fnmatchcase(name, self.options.layers)]
        for layer in chosen:
            place = "" if layer == "(model)" else layer
            model = attached(model, place, self.name, DroppedInputs(self.options.p))
        return model


class DroppedInputs(Attachment):
    """Inputs dropped with probability p and scaled by 1/(1 − p), in training mode."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Set some elements of (records, …) to zero; nothing is added to the loss."""
        return F.dropout(features, self.p, self.training), None
