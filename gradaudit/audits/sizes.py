"""Sizes of an audit, from the smallest useful one to the most precise."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from gradaudit.audits.base import Audit

SizeName = Literal["sample", "least", "rough", "quick", "plain", "thorough"]
SIZES: tuple[SizeName, ...] = get_args(SizeName)
"""Each is the name of a preset of every audit, or of most."""
OF_SUBJECT = ("samples", "single", "layers")
"""What a preset says of the subject, and not of the audit's options."""
SAMPLED_LAYERS = 12
"""Layers of a sample: the first, the last, the widest and one of each kind in a block of ResNets (7
kinds), ViTs (9) and GPT-2 (9) are among them, and eight have numbers where four have no answer."""


@dataclass(frozen=True)
class Size:
    """An audit with the options of one size.

    Attributes:
        name: of the preset.
        audit: with the options of it.
        samples: records that it looks at, where the user does not say; None for its own default.
        single: whether gradients are taken in single precision, where the audit asks for none.
        layers: how many layers it looks at, a sample of them; None for all.
    """

    name: SizeName
    audit: Audit[Any]
    samples: int | None = None
    single: bool = False
    layers: int | None = None
