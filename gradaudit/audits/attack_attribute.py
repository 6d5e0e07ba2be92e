"""Attribute inference from gradients."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradaudit.audits._attack_inference import InferenceAttack, expect_attributes
from gradaudit.audits._attack_options import InferenceOptions

if TYPE_CHECKING:
    from gradaudit.attacks.inference.game import InferenceGame
    from gradaudit.models.target import Subject


class AttackAttribute(InferenceAttack[InferenceOptions]):
    """Guess a private input column of a batch from the gradients it gives.

    All records of a batch have one value of the attribute; the adversary fits P(a|g) on batches of
    shadow records, and adds up what it learns over rounds: log P(a|G) =
    Σ_r [log P_r(a|g_r) − log π_train(a)] + log π(a) + C.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 3.2 and 4, definition 3.1.
    """

    name = "attack attribute"
    summary = "Guess an attribute among the inputs of a batch from its gradients."
    Options = InferenceOptions

    def games(self, subject: "Subject") -> Sequence["InferenceGame"]:
        """One game for every attribute."""
        from gradaudit.attacks.inference.attribute import AttributeGame

        return [
            AttributeGame(name, fewest=self.options.merge_rare)
            for name in expect_attributes(subject)
        ]

    def passes(self, subject: "Subject") -> float:
        """None, where no attribute asked about is among the inputs."""
        columns = {feature.name for feature in subject.records.features}
        return super().passes(subject) if columns & set(subject.attributes) else 0.0
