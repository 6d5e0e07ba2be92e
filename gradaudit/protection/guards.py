"""Protections of a model, undefended updates, and what hiding a layer costs."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from gradaudit.core.randomness import rng, torch_rng
from gradaudit.data.records import Records
from gradaudit.defenses.base import module_of
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from gradaudit.subject import Subject


@dataclass(frozen=True)
class Protection:
    """Layers whose updates are hidden, and the noise on those of all others.

    Attributes:
        layers: names of all layers, in their order.
        hidden: those that are never shared.
        noise: standard deviation of Gaussian noise on every shared layer's update.
    """

    layers: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    noise: float = 0.0

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of the layers that are shared, with or without noise."""
        return tuple(layer for layer in self.layers if layer not in self.hidden)

    def hiding(self, layers: Iterable[str]) -> Self:
        """Hide these layers too."""
        more = {*self.hidden, *layers}
        return replace(self, hidden=tuple(layer for layer in self.layers if layer in more))


BATCH, BATCHES = 32, 8
"""Records of a batch, and the largest number of batches."""


@dataclass(frozen=True)
class UndefendedUpdates:
    """Undefended gradients of batches' mean losses.

    Attributes:
        batches: gradient of each batch, flattened, by layer; with its biases.
    """

    batches: tuple[dict[str, Tensor], ...]

    @classmethod
    def of(cls, subject: Subject) -> Self:
        """Compute updates of batches of the subject's records, drawn without replacement."""
        order = rng(subject.seed, "protection", "batches").permutation(len(subject.records))
        size = max(1, min(BATCH, len(order) // 2))
        starts = range(0, min(len(order), BATCHES * size) - size + 1, size)
        chosen = [subject.records.take(np.sort(order[i : i + size])) for i in starts]
        return cls(tuple(_update(subject, records, n) for n, records in enumerate(chosen)))

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(self.batches[0])

    def elements(self, layer: str) -> int:
        """Count a layer's parameters, biases included."""
        return self.batches[0][layer].numel()

    def norm(self, layer: str) -> float:
        """L2 norm of the longest update of a layer."""
        return max(float(batch[layer].norm()) for batch in self.batches)

    @cached_property
    def length(self) -> float:
        """Root mean square L2 norm of whole updates."""
        return float(np.sqrt(sum(self._energies.values())))

    def lost(self, layer: str, protection: Protection) -> float:
        """Compute the share of a layer's update that does not arrive in the open, 0 to 1.

        All of what is hidden; of noise of deviation σ on n elements nσ²/(E + nσ²), what the best
        linear estimate of the update still misses, with E the mean squared norm of the updates.
        """
        noise = protection.noise**2 * self.elements(layer)
        if layer in protection.hidden:
            return 1.0
        return noise / (self._energies[layer] + noise) if noise else 0.0

    @cached_property
    def _energies(self) -> dict[str, float]:
        return {
            layer: sum(float(batch[layer].double().square().sum()) for batch in self.batches)
            / len(self.batches)
            for layer in self.layers
        }


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


def _update(subject: Subject, records: Records, number: int) -> dict[str, Tensor]:
    """Compute the update of one batch, flattened, on the CPU, by layer."""
    target = subject.target
    generator = torch_rng(subject.seed, "protection", "update", number, device=target.device)
    sharing = SharingProtocol(hidden=subject.hidden)
    shared = share(target, records.inputs, records.labels, sharing, generator)
    parts: dict[str, list[Tensor]] = {layer.name: [] for layer in subject.layers}
    for name, gradient in shared.items():
        if (layer := module_of(name)) in parts:
            parts[layer].append(gradient.detach().flatten().cpu())
    return {layer: torch.cat(each) for layer, each in parts.items()}
