"""Share an update in fewer digits."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from gradaudit.defenses.base import Defense, DefenseOptions


class RoundingOptions(DefenseOptions):
    """Options of the defense."""

    digits: int = Field(2, ge=1, le=16, description="Significant digits that are kept.")


class Rounding(Defense[RoundingOptions]):
    """Round every element to ``digits`` significant digits."""

    name = "rounding"
    summary = "Share every element with a few significant digits."
    example = "rounding:2"
    Options = RoundingOptions
    positional: ClassVar[str | None] = "digits"

    def apply(self, gradients: Tensor, *, records: int, generator: torch.Generator) -> Tensor:
        """(batches, elements) of so many digits; zero stays zero."""
        magnitude = gradients.abs().clamp_min(torch.finfo(gradients.dtype).tiny).log10().floor()
        unit = 10 ** (magnitude - self.options.digits + 1)
        return (gradients / unit).round() * unit
