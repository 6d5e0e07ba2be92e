"""Clipping and noise of differential privacy, with every convention of where they act."""

import torch
from pydantic import Field
from torch import Tensor

from gradaudit.core.noise_laws import Noise, NoisePlace
from gradaudit.defenses.base import Defense, DefenseOptions
from gradaudit.gradients.noise import clip_factors, noise_of_mean


class DpOptions(DefenseOptions):
    """Options of clipping and noise."""

    clip: float = Field(..., gt=0, description="L2 norm Δ that a gradient is clipped to.")
    sigma: float = Field(
        ...,
        ge=0,
        description="Standard deviation of Gaussian noise, or scale of Laplace noise; absolute.",
    )
    noise: Noise = Field("gaussian", description="Law of the noise.")
    per: NoisePlace = Field(
        "sum",
        description="Place where gradients are clipped and noise is "
        "added: record, sum, mean or release.",
    )


class DpNoise(Defense[DpOptions]):
    """Clip to L2 norm Δ and add noise of scale σ to a mean over k records.

    With clip(g) = g / max(1, ‖g‖₂/Δ), and σ and Δ absolute, never multiples of each other:

    - ``per=record``: (1/k) Σ (clip(g_i) + σn_i), as Li et al. 2024, section 6.1;
    - ``per=sum``: (1/k) (Σ clip(g_i) + σn), the DP-SGD of Abadi et al. 2016;
    - ``per=mean``: (1/k) Σ clip(g_i) + σn;
    - ``per=release``: clip((1/k) Σ g_i) + σn, as Mo et al. 2022, section V-E.

    These are the mechanisms of ``dp-audit``. The norm is that of the whole gradient, biases too,
    without layers that are never shared; with ``layers``, of these layers.
    """

    name = "dp"
    summary = "Clip gradients and add noise, per record, sum, mean or release."
    example = "dp:clip=1,sigma=0.1"
    Options = DpOptions

    @property
    def of_records(self) -> bool:
        """Whether single records are clipped."""
        return self.options.per != "release"

    @property
    def additive(self) -> bool:
        """Whether the noise is additive, which it is."""
        return True

    @property
    def isotropic(self) -> bool:
        """Whether the noise is isotropic, which Gaussian noise is and no noise too."""
        return self.options.noise == "gaussian" or self.options.sigma == 0

    def record_factors(self, norms: Tensor) -> Tensor | None:
        """Returns each record's clipping factor, (records,); None where the release is clipped."""
        return clip_factors(norms, self.options.clip) if self.of_records else None

    def batch_factors(self, norms: Tensor) -> Tensor | None:
        """Returns each update's clipping factor, (batches,); None where records are clipped."""
        return None if self.of_records else clip_factors(norms, self.options.clip)

    def apply(self, gradients: Tensor, *, records: int, generator: torch.Generator) -> Tensor:
        """Add fresh noise to every element of (batches, elements)."""
        if self.options.sigma == 0:
            return gradients
        o, rows = self.options, len(gradients)
        noise = noise_of_mean(o.noise, o.per, o.sigma, records, gradients, rows, generator)
        return noise.add_(gradients)
