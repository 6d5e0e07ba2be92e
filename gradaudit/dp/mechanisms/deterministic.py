"""Defenses without randomness as mechanisms: what they release is certain."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradaudit.defenses import Chain, Defense, parse_defense
from gradaudit.dp.mechanisms.base import Mechanism
from gradaudit.errors import UsageError
from gradaudit.text import listed


class DefenseMechanism(Mechanism):
    """The batch's mean gradient as a deterministic defense releases it.

    Equal gradients are released as equal updates, so the releases of a pair either never coincide
    (ε is infinite) or always do (ε is 0).

    Attributes:
        sizes: elements of each parameter in a gradient, in order; empty before ``laid_out``.
    """

    deterministic: ClassVar[bool] = True

    def __init__(
        self, defense: Defense[Any], description: str, sizes: Mapping[str, int] | None = None
    ) -> None:
        self.defense = defense
        self.description = description
        self.sizes = dict(sizes or {})

    @classmethod
    def parse(cls, text: str, option: str) -> "DefenseMechanism":
        """The mechanism of a defense's spec.

        Raises:
            UsageError: a wrong spec, or a defense that is random or changes the model.
        """
        defense = parse_defense(text, option)
        if defense.changes_model:
            raise UsageError(
                f"{option} {text}: {defense.name} changes the model and its training and not what "
                "is released; audit a model that was trained with it"
            )
        if not defense.deterministic:
            raise UsageError(
                f"{option} {text}: {defense.name} draws random numbers of no known law; only "
                "deterministic defenses are mechanisms, others as FILE.py:NAME"
            )
        return cls(defense, text)

    def laid_out(self, sizes: Mapping[str, int]) -> "DefenseMechanism":
        """The same for gradients made of these parameters.

        Raises:
            UsageError: the defense's ``layers`` match none of them.
        """
        if not any(map(self.defense.defends, sizes)):
            raise UsageError(
                f"--mechanism {self.description}: no layer matches "
                f"layers={self.defense.options.layers}; the parameters are: {listed(sizes, 20)}"
            )
        return DefenseMechanism(self.defense, self.description, sizes)

    def release(self, per_sample_gradients: Tensor, generator: torch.Generator) -> Tensor:
        """The defended mean: (records, elements) to (elements,)."""
        mean = per_sample_gradients.mean(dim=0, keepdim=True)
        parts = torch.split(mean, list(self.sizes.values()), dim=1)
        update = dict(zip(self.sizes, parts, strict=True))
        records = len(per_sample_gradients)
        defended = Chain((self.defense,)).apply(
            update, records=records, generators=lambda index, name: generator
        )
        return torch.cat(list(defended.values()), dim=1)[0]

    def releases(
        self, per_sample_gradients: Tensor, count: int, generator: torch.Generator
    ) -> Tensor:
        """The same release ``count`` times, (count, elements)."""
        return self.release(per_sample_gradients, generator).expand(count, -1)
