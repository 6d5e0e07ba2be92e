"""Subspaces of groups of records in every layer of a target, compared with permuted groups.

Reading ``mean`` is that of ``means``. Reading ``samples`` takes what the gradients of a group's
records span: its subspace is that of its k leading principal directions, uncentred, with k the
directions that hold 95 % of the energy of both groups together. Everything happens in the records'
joint coordinates, so a permutation costs the same however many elements a gradient has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.data.records import Records
from gradaudit.errors import AuditError, GradauditError, NotApplicable
from gradaudit.gradients.memory import column_blocks
from gradaudit.gradients.per_sample import PerSampleGradients, per_sample_gradients
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Progress
from gradaudit.subspaces import bases
from gradaudit.subspaces.comparing import Compared, distances, principal_angles, quick_angles
from gradaudit.subspaces.means import NOT_FINITE, MatrixForm, Permuting, mean_gradients
from gradaudit.subspaces.splits import Orders, Split

Outcome = Mapping[int, Compared | GradauditError]
"""Of a layer: what was found of each split, by its number, or why nothing was."""
Array = NDArray[np.float64]
ENERGY = 0.95
_AT_ONCE = 64
_ROUGHLY = 1e-6


@dataclass(frozen=True)
class Comparison:
    """What is compared, and how.

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
    _streams: dict[tuple[str, ...], PerSampleGradients] = field(default_factory=dict, repr=False)

    def outcomes(
        self, reading: Literal["mean", "samples"], progress: Progress
    ) -> Iterator[tuple[str, Outcome]]:
        """What was found in every layer, by its name, in no particular order.

        Raises:
            NotApplicable: the model couples the records of a batch.
            AuditError: the model cannot be run on the records.
        """
        with progress.task(f"subspace, {reading}", len(self.layers)) as advance:
            for outcome in self._by_means() if reading == "mean" else self._by_samples():
                advance(1)
                yield outcome

    def _by_samples(self) -> Iterator[tuple[str, Outcome]]:
        widths = {layer.name: layer.parameters for layer in self.layers}
        vectors: NDArray[np.float64] | None = None
        for piece, block in column_blocks(self._stream, widths, len(self.records), self.memory):
            whole = piece.width == widths[piece.layer]
            vectors = (
                block if whole else bases.joint_triangle(vectors if piece.start else None, block)
            )
            if piece.stop == widths[piece.layer]:
                yield piece.layer, self._of_samples(vectors)

    def _of_samples(self, vectors: NDArray[np.float64]) -> Outcome:
        if not np.isfinite(vectors).all():
            return self._everywhere(AuditError(NOT_FINITE))
        try:
            return compare_samples(vectors, self.splits, self.memory)
        except NotApplicable as why:
            return self._everywhere(why)

    def _by_means(self) -> Iterator[tuple[str, Outcome]]:
        forms, without = self._forms()
        yield from without.items()
        means = dict(mean_gradients(self._stream, forms, self.splits, self.memory))
        permuting = Permuting(self._stream, means, self.splits, self.memory)
        outcomes: dict[str, dict[int, Compared | GradauditError]] = {name: {} for name in means}
        ranks: dict[tuple[str, int], int] = {}
        for name, number in product(means, range(len(self.splits))):
            try:
                ranks[name, number] = means[name].rank(number, self.splits[number])
                permuting.expect_affordable(name)
            except GradauditError as why:
                outcomes[name][number] = why
                ranks.pop((name, number), None)
        for (name, number), permuted in permuting.distances(ranks):
            angles = means[name].angles(number, self.splits[number], ranks[name, number])
            facts: dict[str, JsonValue] = {"k": len(angles), "dimensions": means[name].form.columns}
            compared = Compared(angles, permuted, facts)
            try:
                compared.expect_different()
                outcomes[name][number] = compared
            except NotApplicable as why:
                outcomes[name][number] = why
        yield from outcomes.items()

    def _everywhere(self, why: GradauditError) -> Outcome:
        return dict.fromkeys(range(len(self.splits)), why)

    def _forms(self) -> tuple[dict[str, MatrixForm], dict[str, Outcome]]:
        forms: dict[str, MatrixForm] = {}
        without: dict[str, Outcome] = {}
        for layer in self.layers:
            try:
                forms[layer.name] = MatrixForm.of(layer, self.target.model)
            except NotApplicable as why:
                without[layer.name] = self._everywhere(why)
        return forms, without

    def _stream(self, names: Sequence[str]) -> PerSampleGradients:
        """The gradients of these layers; setting them up takes a trial, so each is kept."""
        key = tuple(names)
        if key not in self._streams:
            self._streams[key] = per_sample_gradients(
                self.target,
                self.records.inputs,
                self.records.labels,
                [layer for layer in self.layers if layer.name in key],
                dtype=self.target.precision,
                memory=self.memory,
                seed=self.seed,
            )
        return self._streams[key]


def compare_samples(
    vectors: Array, splits: Sequence[Split], memory: int
) -> dict[int, Compared | GradauditError]:
    """Compare the groups of every split, by its number.

    Args:
        vectors: the records' gradients by one layer, (records, elements), or their coordinates in
            a joint orthonormal basis.
        splits: those whose groups are large enough.
        memory: bytes that the bases under some permutations may take.

    Raises:
        NotApplicable: the gradients are zero.
    """
    coordinates = bases.principal_coordinates(vectors)
    energies = np.square(coordinates).sum(axis=0)
    if not len(energies):
        raise NotApplicable("the gradients of all records looked at are zero")
    outcomes: dict[int, Compared | GradauditError] = {}
    for number, split in enumerate(splits):
        try:
            outcomes[number] = _compare(coordinates, energies, split, memory)
        except NotApplicable as why:
            outcomes[number] = why
    return outcomes


def _compare(coordinates: Array, energies: Array, split: Split, memory: int) -> Compared:
    """Compare a split's groups.

    The number of directions is the same for every labelling: that of the pooled energy, or the
    records of the smallest group that there is under any of them.

    Raises:
        NotApplicable: all labellings give the same distance.
    """
    holding = bases.directions_holding(ENERGY, energies)
    k = min(holding, split.smallest)
    floor = bases.negligible(coordinates.shape) * float(np.sqrt(energies[0]))
    inside, outside = (
        bases.leading_directions(coordinates[rows], k, floor)
        for rows in (split.member, ~split.member)
    )
    angles = principal_angles(inside, outside)
    permuted = [
        distances(_angles(coordinates, split.member[some], k, floor))
        for some in _portions(split.orders, coordinates.size, memory)
    ]
    together = {name: np.concatenate([part[name] for part in permuted]) for name in permuted[0]}
    facts: dict[str, JsonValue] = {
        "k": k,
        "dimensions": len(energies),
        "energy_share": float(energies[:k].sum() / energies.sum()),
        "k_for_95_percent": holding,
    }
    compared = Compared(angles, together, facts)
    compared.expect_different()
    return compared


def _angles(coordinates: Array, members: NDArray[np.bool_], k: int, floor: float) -> Array:
    """Angles (labellings, k) between the groups of each labelling (labellings, records)."""
    padded = np.pad(coordinates, ((0, 1), (0, 0)))
    directions = []
    for group in (members, ~members):  # filled up with a row past all
        sizes = group.sum(axis=1)
        rows = np.full((len(group), sizes.max()), len(coordinates))
        rows[np.arange(sizes.max()) < sizes[:, None]] = np.nonzero(group)[1]
        directions.append(bases.leading_directions(padded[rows], k, floor, reliable=_ROUGHLY))
    return quick_angles(*directions)


def _portions(orders: Orders, size: int, memory: int) -> Iterator[Orders]:
    """The permutations, as many at once as their groups' coordinates, bases and products fit."""
    step = max(1, min(_AT_ONCE, memory // (8 * 4 * size)))
    for start in range(0, len(orders), step):
        yield orders[start : start + step]
