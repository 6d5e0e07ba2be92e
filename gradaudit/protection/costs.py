"""Costs of protecting a layer: its share of the parameters, or of the bytes of a message."""

from typing import Literal

from torch import nn

from gradaudit.defenses.base import module_of
from gradaudit.protection.guards import UndefendedUpdates

CostName = Literal["parameters", "bytes"]


def prices(cost: CostName, model: nn.Module, updates: UndefendedUpdates) -> dict[str, float]:
    """Compute what hiding each layer costs, as a share of the whole.

    Args:
        cost: ``parameters``, trainable ones with biases, which an enclave has to hold; or ``bytes``
            of the layer's state with its buffers, which are encrypted every round.
        model: the audited model.
        updates: of its layers.
    """
    sizes = dict.fromkeys(updates.layers, 0.0)
    if cost == "parameters":
        sizes = {layer: float(updates.elements(layer)) for layer in updates.layers}
    else:
        for name, tensor in model.state_dict().items():
            if (layer := module_of(name)) in sizes:
                sizes[layer] += tensor.numel() * tensor.element_size()
    whole = sum(sizes.values())
    return {layer: size / whole if whole else 0.0 for layer, size in sizes.items()}
