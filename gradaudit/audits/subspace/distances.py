"""Compares the subspaces of groups of records, in every layer, with those of permuted groups.

Reading ``mean`` is that of ``means``. Reading ``samples`` takes what the gradients of a group's
records span: its subspace is that of its k leading principal directions, uncentred, with k the
directions that hold 95 % of the energy of both groups together. Everything happens in the records'
joint coordinates, so a permutation costs the same however many elements a gradient has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.audits.subspace.comparing import (
    DISTANCES,
    PrincipalAngles,
    directions_holding,
    distances,
    joint_triangle,
    leading_directions,
    negligible,
    principal_coordinates,
    quick_angles,
    subspace_distances,
)
from gradaudit.audits.subspace.groups import Split
from gradaudit.audits.subspace.means import NOT_FINITE, MatrixForm, MeanGroups
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, GradauditError, NotApplicable
from gradaudit.executors.workers import Task, shared_out
from gradaudit.gradients.memory import as_array, column_blocks
from gradaudit.gradients.per_sample import PerSampleGradients, per_sample_gradients
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Advance, Progress

Outcome = Mapping[int, PrincipalAngles | GradauditError]
"""What was found of each split of a layer, by the split's number, or why nothing was."""
Array = NDArray[np.float64]
ENERGY = 0.95
_AT_ONCE = 64
_ROUGHLY = 1e-6


@dataclass(frozen=True)
class Comparison:
    """Settings of a comparison of subspaces: the model, splits, seed and memory.

    Attributes:
        target: the model; it is left as it was.
        splits: groups of the records, large enough to be compared.
        seed: what dropout in training mode draws from.
        memory: bytes that gradients, sums or bases held at one time may take.
    """

    target: Target
    records: Records
    layers: tuple[Layer, ...]
    splits: tuple[Split, ...]
    seed: int
    memory: int

    def outcomes(
        self, reading: Literal["mean", "samples"], progress: Progress, workers: int = 1
    ) -> Iterator[tuple[str, Outcome]]:
        """Yield every layer's comparisons by its name, in no particular order.

        The workers share in the permutations.

        Raises:
            NotApplicable: the model couples the records of a batch.
            AuditError: the model cannot be run on the records.
        """
        by_reading = self._by_means if reading == "mean" else self._by_samples
        with progress.task(
            f"subspace, {reading}", len(self.layers) * self._permutations
        ) as advance:
            yield from by_reading(advance, workers)

    @property
    def _permutations(self) -> int:
        return sum(len(split.orders) for split in self.splits)

    def _by_samples(self, advance: Advance, workers: int) -> Iterator[tuple[str, Outcome]]:
        """Compare layer by layer, or as many at a time as workers' coordinates fit the memory."""
        fitting = max(1, self.memory // (8 * len(self.records) ** 2))
        layers, size = self._coordinates(), fitting if workers > 1 else 1
        while some := dict(islice(layers, size)):
            pairs = [
                (name, number, SampleGroups.of(coordinates, split))
                for name, coordinates in some.items()
                if isinstance(coordinates, np.ndarray)
                for number, split in enumerate(self.splits)
            ]
            compared = _compared(pairs, self.memory, advance, workers)
            for name, one in some.items():
                if isinstance(one, GradauditError):
                    advance(self._permutations)
                    yield name, self._everywhere(one)
                else:
                    yield name, compared[name]

    def _coordinates(self) -> Iterator[tuple[str, Array | GradauditError]]:
        """Yield the records' principal coordinates in every layer, or why there are none."""
        widths = {layer.name: layer.parameters for layer in self.layers}
        vectors: Array | None = None
        for piece, block in column_blocks(self._stream, widths, len(self.records), self._room):
            whole = piece.width == widths[piece.layer]
            vectors = block if whole else joint_triangle(vectors if piece.start else None, block)
            del block  # before the next is made
            if piece.stop == widths[piece.layer]:
                try:
                    yield piece.layer, coordinates_of(vectors)
                except GradauditError as why:
                    yield piece.layer, why
                vectors = None

    def _by_means(self, advance: Advance, workers: int) -> Iterator[tuple[str, Outcome]]:
        for layer in self.layers:
            outcome: dict[int, PrincipalAngles | GradauditError] = {}
            groups: dict[int, Groups] = {}
            try:
                form, vectors = MatrixForm.of(layer, self.target.model), self._vectors(layer)
            except GradauditError as why:
                outcome = self._everywhere(why)
            else:
                for number, split in enumerate(self.splits):
                    try:
                        groups[number] = MeanGroups.of(form, vectors, split)
                    except GradauditError as why:
                        outcome[number] = why
            advance(sum(len(self.splits[number].orders) for number in outcome))
            pairs = [(layer.name, number, each) for number, each in groups.items()]
            yield layer.name, outcome | _compared(pairs, self.memory, advance, workers)[layer.name]

    def _vectors(self, layer: Layer) -> Array:
        """Compute all records' gradients of a layer, (records, elements).

        Raises:
            NotApplicable: they do not fit into memory.
        """
        size = 8 * len(self.records) * layer.parameters
        if size > self._room:
            raise NotApplicable(
                f"{len(self.records)} gradients of {layer.parameters:,} elements take {size:.1e} "
                f"bytes of {self._room:.1e}; use --reading samples, or fewer --samples"
            )
        return np.concatenate([as_array(chunk[layer.name]) for chunk in self._stream([layer.name])])

    def _everywhere(self, why: GradauditError) -> dict[int, PrincipalAngles | GradauditError]:
        return dict.fromkeys(range(len(self.splits)), why)

    def _stream(self, names: Sequence[str]) -> PerSampleGradients:
        """Stream the gradients of these layers; runs of the model are kept where they fit."""
        layers = tuple(layer for layer in self.layers if layer.name in names)
        return replace(self._gradients, layers=layers)

    @cached_property
    def _gradients(self) -> PerSampleGradients:
        return per_sample_gradients(
            self.target,
            self.records.inputs,
            self.records.labels,
            self.layers,
            dtype=self.target.precision,
            memory=self.memory // 8,
            hold=self.memory // 2,
            seed=self.seed,
        )

    @property
    def _room(self) -> int:
        """Compute the bytes that are left for gradients, beside what is kept."""
        return self.memory if self._gradients.held is None else self.memory // 2


def coordinates_of(vectors: Array) -> Array:
    """The records' principal coordinates, (records, directions).

    Args:
        vectors: the records' gradients by one layer, (records, elements), or their coordinates in
            a joint orthonormal basis.

    Raises:
        AuditError: they are not finite.
        NotApplicable: they are zero.
    """
    if not np.isfinite(vectors).all():
        raise AuditError(NOT_FINITE)
    coordinates = principal_coordinates(vectors)
    if not coordinates.shape[1]:
        raise NotApplicable("the gradients of all records looked at are zero")
    return coordinates


def compare_samples(
    vectors: Array, splits: Sequence[Split], memory: int
) -> dict[int, PrincipalAngles | GradauditError]:
    """Compare the groups of every split in one layer, by its number.

    Args:
        vectors: as ``coordinates_of`` takes them.
        splits: those whose groups are large enough.
        memory: bytes that the bases under some permutations may take.

    Raises:
        AuditError: as ``coordinates_of``.
        NotApplicable: as ``coordinates_of``.
    """
    coordinates = coordinates_of(vectors)
    pairs = [
        ("", number, SampleGroups.of(coordinates, split)) for number, split in enumerate(splits)
    ]
    return _compared(pairs, memory, lambda units: None, 1)[""]


def _compared(
    pairs: Sequence[tuple[str, int, Groups]], memory: int, advance: Advance, workers: int
) -> dict[str, dict[int, PrincipalAngles | GradauditError]]:
    """Compare the groups of layers and splits, which workers permute."""
    tasks = [groups.portions(memory) for _, _, groups in pairs]
    permuted = iter(shared_out([*chain.from_iterable(tasks)], workers, advance))
    outcomes: dict[str, dict[int, PrincipalAngles | GradauditError]] = defaultdict(dict)
    for (name, number, groups), own in zip(pairs, tasks, strict=True):
        outcomes[name][number] = groups.compared([*islice(permuted, len(own))])
    return outcomes


@dataclass(frozen=True)
class SampleGroups:
    """The two groups of a split, in principal coordinates (records, directions).

    The number of directions is the same for every labelling: that of the pooled energy, or the
    records of the smallest group that there is under any of them.

    Attributes:
        holding: directions that hold the pooled energy.
        k: directions that are compared.
        floor: singular values up to this are rounding error.
    """

    coordinates: Array
    split: Split
    energies: Array
    holding: int
    k: int
    floor: float

    @classmethod
    def of(cls, coordinates: Array, split: Split) -> Self:
        """Choose the number of directions."""
        energies = np.square(coordinates).sum(axis=0)
        holding = directions_holding(ENERGY, energies)
        floor = negligible(coordinates.shape) * float(np.sqrt(energies[0]))
        return cls(coordinates, split, energies, holding, min(holding, split.smallest), floor)

    def portions(self, memory: int) -> list[Task[dict[str, Array]]]:
        """Compute distances under the permutations, as many at once as fit the memory."""
        labels = self.split.member[self.split.orders]
        step = max(1, min(_AT_ONCE, memory // (8 * 4 * self.coordinates.size)))
        return [
            partial(_permuted, self.coordinates, labels[at : at + step], self.k, self.floor)
            for at in range(0, len(labels), step)
        ]

    def compared(self, permuted: Sequence[Mapping[str, Array]]) -> PrincipalAngles | NotApplicable:
        """Compare the observed groups with permuted ones, unless all are equally far apart."""
        inside, outside = (
            leading_directions(self.coordinates[rows], self.k, self.floor)
            for rows in (self.split.member, ~self.split.member)
        )
        observed = subspace_distances(inside, outside)
        return PrincipalAngles.unless_alike(observed, permuted, self._facts, self._halved())

    def _halved(self) -> dict[str, Array]:
        """Compute distances in half samples, each with its own directions and their number."""
        found: list[dict[str, Array]] = []
        for half, order in zip(self.split.halves, self.split.orders, strict=False):
            labels = np.stack([self.split.member[half], self.split.member[order][half]])
            smallest = int(np.minimum(labels.sum(axis=1), (~labels).sum(axis=1)).min())
            coordinates = principal_coordinates(self.coordinates[half])
            if smallest and coordinates.shape[1]:
                holding = directions_holding(ENERGY, np.square(coordinates).sum(axis=0))
                angles = _angles(coordinates, labels, min(holding, smallest), self.floor)
                found.append(distances(angles))
        return {name: np.stack([each[name] for each in found]) for name in DISTANCES if found}

    @property
    def _facts(self) -> dict[str, JsonValue]:
        return {
            "k": self.k,
            "dimensions": len(self.energies),
            "energy_share": float(self.energies[: self.k].sum() / self.energies.sum()),
            "k_for_95_percent": self.holding,
        }


Groups = SampleGroups | MeanGroups
"""The two groups of a split in one layer, by one of the readings."""


def _permuted(
    coordinates: Array, members: NDArray[np.bool_], k: int, floor: float, advance: Advance
) -> dict[str, Array]:
    """Distances (labellings,) between the groups of some labellings (labellings, records)."""
    found = distances(_angles(coordinates, members, k, floor))
    advance(len(members))
    return found


def _angles(coordinates: Array, members: NDArray[np.bool_], k: int, floor: float) -> Array:
    """Angles (labellings, k) between the groups of each labelling (labellings, records)."""
    padded = np.pad(coordinates, ((0, 1), (0, 0)))
    directions = []
    for group in (members, ~members):  # filled up with a row past all
        sizes = group.sum(axis=1)
        rows = np.full((len(group), sizes.max()), len(coordinates))
        rows[np.arange(sizes.max()) < sizes[:, None]] = np.nonzero(group)[1]
        directions.append(leading_directions(padded[rows], k, floor, reliable=_ROUGHLY))
    return quick_angles(*directions)
