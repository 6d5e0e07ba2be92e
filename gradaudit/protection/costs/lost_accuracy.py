"""Accuracy that is lost."""

from collections.abc import Mapping

from gradaudit.data.records import Records
from gradaudit.models.target import Target
from gradaudit.protection.costs.base import Cost
from gradaudit.protection.guards import UndefendedUpdates


class Accuracy(Cost):
    """Decrease of the loss by the layer's update: ‖ḡ_l‖², with ḡ the mean gradient of all batches.

    A small step of rate r by what arrives lowers the mean loss by r·Σ_l ‖ḡ_l‖²·(1 − lost_l), so
    that the cost is the share of a round's progress that is lost where hidden layers are not
    trained. It says nothing about where training ends.
    """

    name = "accuracy"
    summary = "share of the loss's decrease in a small step that is lost"

    def sizes(
        self, target: Target, records: Records, updates: UndefendedUpdates
    ) -> Mapping[str, float]:
        """Returns the squared norms of the mean gradient by layer."""
        return {layer: updates.mean_energy(layer) for layer in updates.layers}
