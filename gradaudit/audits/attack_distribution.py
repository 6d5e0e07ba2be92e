"""Distributional inference from gradients."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from gradaudit.audits._attack_inference import InferenceAttack, expect_attributes
from gradaudit.audits._attack_options import InferenceOptions

if TYPE_CHECKING:
    from gradaudit.attacks.inference.game import InferenceGame
    from gradaudit.models.target import Subject


class DistributionOptions(InferenceOptions):
    """Options of distributional inference."""

    bins: int = Field(6, ge=3, le=64, description="Ratio bins: none, then equal shares of (0, 1].")
    value: str | None = Field(
        None, description="The attribute's value that is counted (its rarest one)."
    )


class AttackDistribution(InferenceAttack[DistributionOptions]):
    """Guess how many of a batch's records have a value, in ordered bins of their share.

    With m bins {0}, (0, 1/(m−1)], …, ((m−2)/(m−1), 1], the adversary fits one classifier of "more
    than bin i" for each i (Frank and Hall 2001), clips the differences and normalises.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 3.2 and 4, definition 3.1.
    """

    name = "attack distribution"
    summary = "Guess the share of a batch's records that have a value from its gradients."
    Options = DistributionOptions
    plain: ClassVar = {"batches": 90, "repeats": 2}

    def games(self, subject: "Subject") -> Sequence["InferenceGame"]:
        """One game for every attribute."""
        from gradaudit.attacks.inference.distribution import DistributionGame

        names = expect_attributes(subject)
        fewest = self.options.merge_rare
        return [DistributionGame(name, self.options.value, fewest=fewest) for name in names]

    def _fits(self) -> int:
        return self.options.bins - 1

    def _of_the_game(self) -> dict[str, int]:
        return {"bins": self.options.bins}
