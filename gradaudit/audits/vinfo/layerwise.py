"""Usable information of every layer: batches through the interceptor, features to estimates."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gradaudit.audits.vinfo.repetitions import Repetition
from gradaudit.audits.vinfo.v_information import Estimator, Rows, UsableInformation, estimate
from gradaudit.models.target import Layer
from gradaudit.progress import Progress
from gradaudit.randomness import number, rng, sequence
from gradaudit.sharing.draws import draws_of_others
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.reduction import Reduction
from gradaudit.units import NOTHING_KEPT, Units
from gradaudit.workers import Task, Workers, shared_out

_TOGETHER = 8
"""Repetitions whose batches are observed in one pass over the records."""
Observe = Callable[[Sequence[Layer]], Interceptor]


@dataclass(frozen=True)
class Layerwise:
    """Estimates of every layer.

    Attributes:
        observe: makes the interceptor of some layers.
        others: how many other clients' updates each batch's is mixed with. They draw from the set
            of the batch, so that no record is in two sets.
        seed: root of defenses' noise and of fits.
        jobs: worker processes; the numbers do not depend on them.
        units: where estimates are kept.
        notes: what is to be said of how updates were computed.
    """

    observe: Observe
    layers: Sequence[Layer]
    reduction: Reduction | None
    others: int
    seed: np.random.SeedSequence
    jobs: int
    units: Units = NOTHING_KEPT
    notes: set[str] = field(default_factory=set)

    def usable(
        self, planned: Sequence[Repetition], adversary: Estimator, progress: Progress, title: str
    ) -> dict[str, list[UsableInformation]]:
        """Each layer's estimates, one a repetition."""
        estimates: dict[str, list[UsableInformation]] = {layer.name: [] for layer in self.layers}
        if not planned:
            return estimates
        total, names = len(planned) * len(self.layers), list[str]()

        def tasks() -> Iterator[Task[UsableInformation]]:
            for layer, repetition_rows in self._observed(planned):
                units = self.units.of(title, layer.name, names.count(layer.name))
                for place, (repetition, rows) in enumerate(repetition_rows):
                    fits = self._fits(layer, repetition)
                    task = partial(estimate, rows, repetition, adversary, fits)
                    names.append(layer.name)
                    yield Workers(units=units).keeping(task, place)

        with progress.task(title, total) as advance:
            found = shared_out(tasks(), self.jobs, advance, seconds=None, count=total)
        for name, usable in zip(names, found, strict=True):
            estimates[name].append(usable)
        return estimates

    def _observed(
        self, planned: Sequence[Repetition]
    ) -> Iterator[tuple[Layer, list[tuple[Repetition, Rows]]]]:
        """Each layer with the features of some repetitions, in order, until all are through.

        Principal components are fitted on the adversary's records of each repetition alone.
        """
        fitted = self.reduction is not None and self.reduction.kind == "pca"
        together = 1 if fitted else _TOGETHER
        interceptor = self.observe(self.layers)
        self.notes.update({interceptor.note} - {""})
        for start in range(0, len(planned), together):
            group = planned[start : start + together]
            drawn = [
                np.concatenate([part.indices for part in repetition.batches])
                for repetition in group
            ]
            ends = np.cumsum(list(map(len, drawn)))[:-1]
            for layer, rows in interceptor.features(
                np.concatenate(drawn),
                fit=group[0].adversary if fitted else None,
                seed=number(self.seed, "updates", *group[0].words),
                others=np.concatenate([self._others(repetition) for repetition in group]),
            ):
                yield layer, list(zip(group, np.split(rows.numpy(), ends), strict=True))

    def _others(self, repetition: Repetition) -> NDArray[np.int64]:
        """Other clients' records of each batch, (batches, others, k)."""
        generator = rng(self.seed, "others", *repetition.words)
        drawn = [
            draws_of_others(batches.indices, self.others, np.sort(part), generator)
            for batches, part in zip(repetition.batches, repetition.parts, strict=True)
        ]
        return np.concatenate(drawn)

    def _fits(self, layer: Layer, repetition: Repetition) -> np.random.SeedSequence:
        return sequence(self.seed, "fits", layer.name, *repetition.words)
