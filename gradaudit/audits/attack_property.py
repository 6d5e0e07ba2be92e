"""Property inference from gradients."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradaudit.audits._attack_inference import InferenceAttack, expect_attributes
from gradaudit.audits._attack_options import InferenceOptions

if TYPE_CHECKING:
    from gradaudit.attacks.inference.game import InferenceGame
    from gradaudit.models.target import Subject


class AttackProperty(InferenceAttack[InferenceOptions]):
    """Guess a property of a batch that is no input of the model from the gradients it gives.

    As attribute inference, but the attribute's column is not among the inputs: it was dropped in
    the data's spec (``drop=COL``), or is held at its mean where the model takes it.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 3.2 and 4, definition 3.1.
    """

    name = "attack property"
    summary = "Guess a property that is no input of a batch from its gradients."
    Options = InferenceOptions

    def games(self, subject: "Subject") -> Sequence["InferenceGame"]:
        """One game for every attribute."""
        from gradaudit.attacks.inference.property import PropertyGame

        return [
            PropertyGame(name, fewest=self.options.merge_rare)
            for name in expect_attributes(subject)
        ]
