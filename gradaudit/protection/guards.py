"""Guards of layers' updates, protections of a whole model, and updates before and after them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from gradaudit.core.randomness import rng, torch_rng
from gradaudit.data.records import Records
from gradaudit.defenses.base import module_of
from gradaudit.defenses.prune import keep_largest
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from gradaudit.subject import Subject

Kind = Literal["open", "hide", "noise", "prune"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, order=True)
class Guard:
    """A guard of one layer's update: share, hide, blur or prune.

    Attributes:
        kind: ``open`` leaves it as it is, and ``hide`` never shares it.
        amount: standard deviation of ``noise`` or share of the elements that ``prune`` removes;
            else 0.
    """

    kind: Kind = "open"
    amount: float = 0.0

    def covers(self, other: "Guard") -> bool:
        """Whether this guard gives away no more than another one on any layer.

        Noise and pruning are not compared with each other.
        """
        if self.kind == "hide" or other.kind == "open":
            return True
        return self.kind == other.kind and self.amount >= other.amount


OPEN, HIDE = Guard(), Guard("hide")


@dataclass(frozen=True)
class Protection:
    """A guard for each layer, in the layers' order."""

    layers: tuple[str, ...]
    guards: tuple[Guard, ...]

    @classmethod
    def uniform(cls, layers: Sequence[str], guard: Guard = OPEN) -> Self:
        """Returns the protection with the same guard for all layers."""
        return cls(tuple(layers), (guard,) * len(layers))

    def __iter__(self) -> Iterator[tuple[str, Guard]]:
        return zip(self.layers, self.guards, strict=True)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Names the layers that are never shared."""
        return tuple(layer for layer, guard in self if guard == HIDE)

    @property
    def shared(self) -> tuple[str, ...]:
        """Names the layers that are shared, with or without noise."""
        return tuple(layer for layer, guard in self if guard != HIDE)

    def hiding(self, layers: Iterable[str]) -> Self:
        """Returns the protection with these layers hidden too."""
        more = set(layers)
        guards = (HIDE if layer in more else guard for layer, guard in self)
        return replace(self, guards=tuple(guards))

    def with_guard(self, layer: str, guard: Guard) -> Self:
        """Returns the protection with another guard for one layer."""
        guards = (guard if name == layer else old for name, old in self)
        return replace(self, guards=tuple(guards))

    def covers(self, other: Self) -> bool:
        """Whether every layer gives away no more than under another protection."""
        return all(a.covers(b) for a, b in zip(self.guards, other.guards, strict=True))


BATCH, BATCHES = 32, 8
"""Records of a batch, and the largest number of batches."""


@dataclass(frozen=True)
class UndefendedUpdates:
    """Undefended gradients of batches' mean losses.

    Attributes:
        batches: gradient of each batch, flattened, by layer and parameter.
    """

    batches: tuple[dict[str, dict[str, Tensor]], ...]

    @classmethod
    def of(cls, subject: Subject) -> Self:
        """Returns updates of batches of the subject's records, drawn without replacement."""
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
        """Returns the number of a layer's parameters, biases included."""
        return sum(tensor.numel() for tensor in self.batches[0][layer].values())

    @cached_property
    def scale(self) -> float:
        """Root mean square of all elements of all updates."""
        count = sum(map(self.elements, self.layers))
        return self.length / float(np.sqrt(count))

    @cached_property
    def length(self) -> float:
        """Root mean square L2 norm of whole updates."""
        return float(np.sqrt(sum(self._energies.values())))

    def norm(self, layer: str) -> float:
        """L2 norm of the longest update of a layer."""
        return max(float(torch.cat([*batch[layer].values()]).norm()) for batch in self.batches)

    def mean_energy(self, layer: str) -> float:
        """Squared L2 norm of the mean update of a layer."""
        rows = [torch.cat([*batch[layer].values()]) for batch in self.batches]
        return float(torch.stack(rows).mean(dim=0).square().sum())

    def size(self, layer: str) -> float:
        """Root mean square of a layer's elements: noise of that deviation loses half of it."""
        return float(np.sqrt(self._energies[layer] / self.elements(layer)))

    def lost(self, layer: str, guard: Guard) -> float:
        """Returns the share of a layer's update that does not arrive in the open, 0 to 1.

        All of what is hidden; of noise of deviation σ on n elements nσ²/(E + nσ²), what the best
        linear estimate of the update still misses, with E the mean squared norm of the updates;
        of pruning the share of E that is removed.
        """
        if guard.kind == "open":
            return 0.0
        energy = self._energies[layer]
        if guard.kind == "hide" or not energy:
            return 1.0
        if guard.kind == "noise":
            noise = guard.amount**2 * self.elements(layer)
            return noise / (energy + noise)
        return 1 - self._energy(layer, pruned=guard.amount) / energy

    @cached_property
    def _energies(self) -> dict[str, float]:
        return {layer: self._energy(layer) for layer in self.layers}

    def _energy(self, layer: str, pruned: float = 0.0) -> float:
        """Compute the mean squared norm that pruning a share leaves of each tensor."""
        total = 0.0
        for tensor in (tensor for batch in self.batches for tensor in batch[layer].values()):
            count = tensor.numel() - round(pruned * tensor.numel())
            left = keep_largest(tensor[None], count) if pruned else tensor
            total += float(left.double().square().sum())
        return total / len(self.batches)


def _update(subject: Subject, records: Records, number: int) -> dict[str, dict[str, Tensor]]:
    """Returns the update of one batch, flattened, on the CPU, by layer and parameter."""
    target = subject.target
    generator = torch_rng(subject.seed, "protection", "update", number, device=target.device)
    sharing = SharingProtocol(hidden=subject.hidden)
    shared = share(target, records.inputs, records.labels, sharing, generator)
    update: dict[str, dict[str, Tensor]] = {layer.name: {} for layer in subject.layers}
    for name, gradient in shared.items():
        if (layer := module_of(name)) in update:
            update[layer][name] = gradient.detach().flatten().cpu()
    return update
