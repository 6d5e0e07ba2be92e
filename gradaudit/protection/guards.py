"""Guards of layers' updates, protections of a whole model, and undefended updates."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from gradaudit.core.randomness import rng, torch_rng
from gradaudit.data.records import Records
from gradaudit.defenses.base import module_of
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from gradaudit.subject import Subject


@dataclass(frozen=True)
class Guard:
    """A guard of one layer's update: share it, hide it, or blur it by Gaussian noise.

    Attributes:
        kind: ``open`` leaves it as it is, and ``hide`` never shares it.
        amount: standard deviation of ``noise``; else 0.
    """

    kind: Literal["open", "hide", "noise"] = "open"
    amount: float = 0.0


OPEN, HIDE = Guard(), Guard("hide")


@dataclass(frozen=True)
class Protection:
    """A guard for each layer, in the layers' order."""

    layers: tuple[str, ...]
    guards: tuple[Guard, ...]

    @classmethod
    def uniform(cls, layers: Sequence[str], guard: Guard = OPEN) -> Self:
        """Guard all layers alike."""
        return cls(tuple(layers), (guard,) * len(layers))

    def __iter__(self) -> Iterator[tuple[str, Guard]]:
        return zip(self.layers, self.guards, strict=True)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Names of the layers that are never shared."""
        return tuple(layer for layer, guard in self if guard == HIDE)

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of the layers that are shared, with or without noise."""
        return tuple(layer for layer, guard in self if guard != HIDE)

    def hiding(self, layers: Iterable[str]) -> Self:
        """Hide these layers too."""
        more = set(layers)
        guards = (HIDE if layer in more else guard for layer, guard in self)
        return replace(self, guards=tuple(guards))

    def blurred(self, deviation: float) -> Self:
        """Blur every shared layer by Gaussian noise of this deviation."""
        noise = Guard("noise", deviation)
        return replace(self, guards=tuple(HIDE if g == HIDE else noise for g in self.guards))


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

    def lost(self, layer: str, guard: Guard) -> float:
        """Compute the share of a layer's update that does not arrive in the open, 0 to 1.

        All of what is hidden; of noise of deviation σ on n elements nσ²/(E + nσ²), what the best
        linear estimate of the update still misses, with E the mean squared norm of the updates.
        """
        if guard.kind == "open":
            return 0.0
        energy = self._energies[layer]
        if guard.kind == "hide" or not energy:
            return 1.0
        noise = guard.amount**2 * self.elements(layer)
        return noise / (energy + noise)

    @cached_property
    def _energies(self) -> dict[str, float]:
        return {
            layer: sum(float(batch[layer].double().square().sum()) for batch in self.batches)
            / len(self.batches)
            for layer in self.layers
        }


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
