"""Presets of an audit, from the least work to the most."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from gradaudit.audits.base import Audit

PresetName = Literal["least", "quick", "plain", "thorough"]
PRESETS: tuple[PresetName, ...] = get_args(PresetName)
OF_SUBJECT = ("samples", "single", "layers")
"""Keys of a preset that concern the subject, and not the audit's options."""
SAMPLED_LAYERS = 12
"""Layers of a sample: the first, the last, the widest and one of each kind in a block of ResNets (7
kinds), ViTs (9) and GPT-2 (9) are among them."""


@dataclass(frozen=True)
class Preset:
    """An audit with the options of one preset.

    Attributes:
        name: of the preset.
        audit: with its options.
        samples: number of records where the user does not say; None for the audit's default.
        single: whether gradients are taken in single precision.
        layers: number of sampled layers; None for all.
    """

    name: PresetName
    audit: Audit[Any]
    samples: int | None = None
    single: bool = False
    layers: int | None = None
