"""How far a record's released gradient moves when its private value is replaced."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.data.records import Records
from gradaudit.dp.domain import DomainName, PrivateColumn
from gradaudit.dp.gradients import RecordGradients
from gradaudit.dp.mechanisms import Mechanism, Noiseless
from gradaudit.dp.mechanisms.clipped_noise import ClippedNoise
from gradaudit.dp.releases import CommonNoise
from gradaudit.errors import AuditError, UsageError
from gradaudit.randomness import Seed, rng, sequence

Distance = Callable[[Tensor, Tensor], Tensor]
"""Distances (records,) between two gradients (records, elements) each."""

_COPIES = 8
"""Gradients that are held for one variant of a record, at most, counting those of the backward
pass through them."""


@dataclass(frozen=True)
class Design:
    """How the pair of a game is chosen.

    Attributes:
        record: random, crafted or an index.
        domain: what a crafted record may look like.
        mixture: whether the alternative draws from all other values (definition 7.2), or is the
            one that moves the release most.
        companions: other records in the batch.
        clip: Δ that a mechanism from a file is declared to clip to, for crafting.
        restarts: starts of the ascent of crafting; none leave it out.
        iterations: steps of the ascent.
        pool: ordinary records that are looked at for a place to start from.
    """

    record: str = "crafted"
    domain: DomainName = "feasible"
    mixture: bool = False
    companions: int = 0
    clip: float | None = None
    restarts: int = 16
    iterations: int = 200
    pool: int = 256


@dataclass(frozen=True)
class RecordSensitivity:
    """What the gap of a record depends on.

    Attributes:
        gradients: the model's per-sample gradients.
        column: the private column.
        judge: the release without noise, or with common noise; gaps are measured by it.
        distances: what crafting maximises, each for its share of the starts; differentiable.
        companions: (others, elements) gradients of the rest of the batch.
        memory: bytes that a chunk may take.
        measured_by: the judge in words.
    """

    gradients: RecordGradients
    column: PrivateColumn
    judge: Noiseless
    distances: tuple[Distance, ...]
    companions: Tensor
    memory: int
    measured_by: str = "the noiseless release"

    @classmethod
    def of(
        cls,
        gradients: RecordGradients,
        records: Records,
        column: PrivateColumn,
        mechanism: Mechanism,
        design: Design,
        memory: int,
        seed: Seed,
    ) -> RecordSensitivity:
        """That of a mechanism's releases.

        Args:
            gradients: the model's.
            records: the data set.
            column: the private column.
            mechanism: that releases.
            design: how many companions there are, and the clip that is declared.
            memory: bytes that a chunk may take.
            seed: draws the companions, and the common noise.

        Raises:
            UsageError: there are not so many companions.
        """
        others = _companions(records, gradients, design.companions, seed)
        first = gradients(records.inputs[:1].flatten(1), records.labels[:1])
        batch = torch.cat([first, others])
        judge, distances, words = _judge(mechanism, design.clip, batch, others, seed)
        return cls(gradients, column, judge, distances, others, memory, words)

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
    itself = torch.eye(gaps.shape[1], dtype=torch.bool, device=gaps.device)
    return gaps.masked_fill(itself, -1)


def squared_gap(noiseless: Noiseless, companions: Tensor) -> Distance:
    """Squared distance of two noiseless releases (Li24's MSE, up to a factor)."""

    def distance(first: Tensor, second: Tensor) -> Tensor:
        return (noiseless(first, companions) - noiseless(second, companions)).square().sum(dim=1)

    return distance


def cosine_distance(first: Tensor, second: Tensor) -> Tensor:
    """One minus the cosine of two gradients (Li24), which is what a tiny clip leaves of them."""
    return 1 - torch.cosine_similarity(first, second, dim=1)


def _companions(records: Records, gradients: RecordGradients, count: int, seed: Seed) -> Tensor:
    """Gradients (count, elements) of the rest of the batch, drawn without replacement."""
    if count >= len(records):
        raise UsageError(
            f"--companions {count}: there are {len(records)} records in all; give at most "
            f"{len(records) - 1}"
        )
    chosen = rng(seed, "companions").permutation(len(records))[:count]
    if not count:
        return torch.zeros(0, gradients.elements, dtype=torch.float64, device=gradients.device)
    with torch.no_grad():
        return gradients(records.inputs[chosen].flatten(1), records.labels[chosen])


def _judge(
    mechanism: Mechanism,
    clip: float | None,
    batch: Tensor,
    companions: Tensor,
    seed: Seed,
) -> tuple[Noiseless, tuple[Distance, ...], str]:
    """What gaps are measured by, what crafting maximises, and the first in words.

    Crafting maximises the gap itself, where that can be differentiated. Else guesses stand for it:
    a mechanism from a file may clip as declared, not at all, or to a bound nobody knows, for which
    the cosine stands.
    """
    law = mechanism.law(len(batch))
    if law is not None:
        distances = squared_gap(law.noiseless, companions), cosine_distance
        return law.noiseless, distances, "the noiseless release"
    common, declared = CommonNoise(mechanism, sequence(seed, "common noise")), _clipped_mean(clip)
    if not common.repeats(batch):
        words = "the declared clip" if clip else "gradients that nothing clips"
        return declared, (squared_gap(declared, companions), cosine_distance), words
    words = "the release" if mechanism.deterministic else "releases with common noise"
    guesses = common if common.differentiable(batch) else declared, _clipped_mean(None)
    gaps = (squared_gap(guess, companions) for guess in guesses)
    return common, (*gaps, cosine_distance), words


def _clipped_mean(clip: float | None) -> Noiseless:
    return ClippedNoise(clip=clip or math.inf, sigma=0).noiseless
