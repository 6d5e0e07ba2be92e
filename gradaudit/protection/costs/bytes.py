"""The cost by bytes of the layers that are protected."""

from collections.abc import Mapping

from gradaudit.data.records import Records
from gradaudit.defenses.base import module_of
from gradaudit.models.target import Target
from gradaudit.protection.costs.base import Cost
from gradaudit.protection.guards import UndefendedUpdates


class Bytes(Cost):
    """Bytes of the layer's state with its buffers, which are encrypted every round."""

    name = "bytes"
    summary = "share of a message's bytes, buffers included, that are encrypted or drowned in noise"

    def sizes(
        self, target: Target, records: Records, updates: UndefendedUpdates
    ) -> Mapping[str, float]:
        """Returns the bytes by layer."""
        sizes = dict.fromkeys(updates.layers, 0.0)
        for name, tensor in target.model.state_dict().items():
            if (layer := module_of(name)) in sizes:
                sizes[layer] += tensor.numel() * tensor.element_size()
        return sizes
