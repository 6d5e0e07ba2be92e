"""The cost by parameters of the layers that are protected."""

from collections.abc import Mapping

from gradaudit.data.records import Records
from gradaudit.models.target import Target
from gradaudit.protection.costs.base import Cost
from gradaudit.protection.guards import UndefendedUpdates


class Parameters(Cost):
    """The layer's trainable parameters with its biases, which an enclave has to hold."""

    name = "parameters"
    summary = "share of the trainable parameters that are hidden or whose update drowns in noise"

    def sizes(
        self, target: Target, records: Records, updates: UndefendedUpdates
    ) -> Mapping[str, float]:
        """Returns the parameters by layer."""
        return {layer: float(updates.elements(layer)) for layer in updates.layers}
