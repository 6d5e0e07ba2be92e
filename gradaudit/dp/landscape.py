"""How far a record's released gradient moves when its private value is replaced."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradaudit.dp.attribute import PrivateColumn
from gradaudit.dp.gradients import RecordGradients
from gradaudit.errors import AuditError

Distance = Callable[[Tensor, Tensor], Tensor]
"""Distances (records,) between two gradients (records, elements) each."""

_COPIES = 8
"""Gradients that are held for one variant of a record, at most, counting those of the backward
pass through them."""


class Mean(Protocol):
    """The release without noise, as ``AdditiveMechanism.mean_of`` gives it."""

    def __call__(self, record: Tensor, companions: Tensor) -> Tensor:
        """(…, elements) and (others, elements) to (…, elements)."""
        ...


@dataclass(frozen=True)
class Canary:
    """A record for the game, and the pair of values that moves its release most.

    Attributes:
        kind: random, nearest, crafted, or which record it is.
        inputs: (positions,) flattened inputs, float64.
        label: its task label.
        null: index of the value under the null hypothesis.
        alternative: index of the value under the alternative.
        gap: L2 distance of the two releases without noise.
    """

    kind: str
    inputs: Tensor
    label: Tensor
    null: int
    alternative: int
    gap: float


@dataclass(frozen=True)
class Landscape:
    """What the gap of a record depends on.

    Attributes:
        gradients: the model's per-sample gradients.
        column: the private column.
        judge: the release without noise, or with common noise; gaps are measured by it.
        distances: what crafting maximises, each for its share of the starts; differentiable.
        companions: (others, elements) gradients of the rest of the batch.
        memory: bytes that a chunk may take.
    """

    gradients: RecordGradients
    column: PrivateColumn
    judge: Mean
    distances: tuple[Distance, ...]
    companions: Tensor
    memory: int

    def records_at_once(self, variants: int) -> int:
        """Records whose gradients fit the memory, with so many variants of each."""
        return max(1, self.memory // (_COPIES * 8 * variants * self.gradients.elements))

    def gaps(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Distance of the noiseless releases under every two values, (records, values, values)."""
        chunk = self.records_at_once(len(self.column))
        tables = [
            self._gaps(inputs[rows : rows + chunk], labels[rows : rows + chunk])
            for rows in range(0, len(inputs), chunk)
        ]
        return torch.cat(tables)

    def _gaps(self, inputs: Tensor, labels: Tensor) -> Tensor:
        variants = self.column.variants(inputs)
        records, values = variants.shape[:2]
        repeated = labels.repeat_interleave(values, dim=0)
        with torch.no_grad():
            flat = self.gradients(variants.flatten(0, 1), repeated)
            releases = self.judge(flat, self.companions).view(records, values, -1)
            if not releases.isfinite().all():
                raise AuditError("a record's gradient is not finite; the model has diverged")
            mode = "donot_use_mm_for_euclid_dist"
            return torch.cdist(releases, releases, compute_mode=mode).cpu()

    def canaries(self, kind: str, inputs: Tensor, labels: Tensor) -> list[Canary]:
        """Records as they are: the value each holds against the one that moves it most."""
        held = self.column.value_in(inputs)
        table = between_two_values(self.gaps(inputs, labels))
        gaps, other = table[torch.arange(len(inputs)), held.cpu()].max(dim=1)
        return [
            Canary(kind, inputs[i], labels[i], int(held[i]), int(other[i]), float(gaps[i]))
            for i in range(len(inputs))
        ]

    def objective(
        self, distance: Distance, pairs: Tensor, labels: Tensor
    ) -> Callable[[Tensor], Tensor]:
        """What crafting maximises, as a function of inputs (records, positions) to (records,).

        Args:
            distance: of the two gradients.
            pairs: (records, 2) indices of the values.
            labels: (records,).
        """
        null, alternative = (self.column.values[pairs[:, i]] for i in (0, 1))

        def function(inputs: Tensor) -> Tensor:
            both = torch.cat([self.column.put(inputs, null), self.column.put(inputs, alternative)])
            first, second = self.gradients(both, torch.cat([labels, labels])).chunk(2)
            return distance(first, second)

        return function


def between_two_values(gaps: Tensor) -> Tensor:
    """Gaps (records, values, values) with −1 from a value to itself: the largest is of two."""
    own = torch.eye(gaps.shape[1], dtype=torch.bool, device=gaps.device)
    return gaps.masked_fill(own, -1)


def squared_gap(mean: Mean, companions: Tensor) -> Distance:
    """Squared distance of two noiseless releases (Li24's MSE, up to a factor)."""

    def distance(first: Tensor, second: Tensor) -> Tensor:
        return (mean(first, companions) - mean(second, companions)).square().sum(dim=1)

    return distance


def cosine_distance(first: Tensor, second: Tensor) -> Tensor:
    """One minus the cosine of two gradients (Li24), which is what a tiny clip leaves of them."""
    return 1 - torch.cosine_similarity(first, second, dim=1)
