"""Base class of measures of cost: the weight of each layer in the model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from gradaudit.data.records import Records
from gradaudit.models.target import Target
from gradaudit.protection.guards import UndefendedUpdates


class Cost(ABC):
    """Base of the measures of what it costs to protect a layer.

    A plan's cost is Σ_l w_l·lost_l, with w_l the layer's weight, which add up to at most 1, and
    lost_l the share of its update that does not arrive in the open (``UndefendedUpdates.lost``).

    Attributes:
        name: as on the command line.
        summary: what a cost of 0.1 means.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def sizes(
        self, target: Target, records: Records, updates: UndefendedUpdates
    ) -> Mapping[str, float]:
        """Returns each layer's size by this measure, in any unit; a layer left out has size 0.

        Args:
            target: the model.
            records: some of the records that the model is trained on.
            updates: updates that clients share.
        """

    def weights(
        self, target: Target, records: Records, updates: UndefendedUpdates
    ) -> dict[str, float]:
        """Returns each layer's share of the total."""
        sizes = self.sizes(target, records, updates)
        whole = sum(sizes.values())
        return {layer: size / whole if whole else 0.0 for layer, size in sizes.items()}
