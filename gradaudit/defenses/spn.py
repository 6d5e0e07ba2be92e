"""The secret polarization network."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from gradaudit.defenses.base import Defense, DefenseOptions

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gradaudit.models.losses import Loss


class SpnOptions(DefenseOptions):
    """Options of the secret polarization network."""

    bits: int = Field(64, ge=1, le=1 << 16, description="Length K of the classes' secret codes.")
    alpha: float = Field(0.1, ge=0, description="Factor α₂ on the polarization loss (α₁ is 1).")
    margin: float = Field(1.0, ge=1, description="Margin m of the polarization loss.")
    head: float | None = Field(
        None,
        gt=0,
        description="B: the private layer starts in uniform(−B, B) (without it 1/√inputs).",
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

    def modify(self, model: "nn.Module", generator: "torch.Generator") -> "nn.Module":
        """A copy of the model with a private head, whose weights and codes are drawn."""
        from gradaudit.defenses.modules.attachment import attached, last_linear
        from gradaudit.defenses.modules.polarization import PolarizationHead

        o = self.options
        layer, linear = last_linear(model, str(self), o.layers)
        outputs = last_linear(model, str(self))[1].out_features
        head = PolarizationHead(linear.in_features, max(2, outputs), o.bits, o.margin, o.head)
        head.draw(generator)
        return attached(model, layer, self.name, head)

    def modified_loss(self, loss: "Loss", model: "nn.Module") -> "Loss":
        """The loss with α₂ times the polarization loss of the true class."""
        from gradaudit.defenses.modules.attachment import attachments
        from gradaudit.defenses.modules.loss import ChosenColumn
        from gradaudit.defenses.modules.polarization import PolarizationHead

        head = next(part for part in attachments(model) if isinstance(part, PolarizationHead))
        return ChosenColumn(loss, head.extra, self.options.alpha)
