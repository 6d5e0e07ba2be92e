"""Subspaces of groups of records in every layer of a target, compared with permuted groups."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.blocks import column_blocks
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, GradauditError, NotApplicable
from gradaudit.gradients.per_sample import PerSampleGradients, per_sample_gradients
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Progress
from gradaudit.subspaces.bases import joint_triangle
from gradaudit.subspaces.comparing import Compared
from gradaudit.subspaces.matrices import MatrixForm
from gradaudit.subspaces.means import NOT_FINITE, Permuting, mean_gradients
from gradaudit.subspaces.samples import compare_samples
from gradaudit.subspaces.splits import Split

Outcome = Mapping[int, Compared | GradauditError]
"""Of a layer: what was found of each split, by its number, or why nothing was."""


@dataclass(frozen=True)
class Comparison:
    """What is compared, and how.

    Attributes:
        target: the model; it is left as it was.
        records: those looked at.
        layers: whose gradients are compared.
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
            for found in self._by_means() if reading == "mean" else self._by_samples():
                advance(1)
                yield found

    def _by_samples(self) -> Iterator[tuple[str, Outcome]]:
        widths = {layer.name: layer.parameters for layer in self.layers}
        vectors: NDArray[np.float64] | None = None
        for piece, block in column_blocks(self._stream, widths, len(self.records), self.memory):
            whole = piece.width == widths[piece.layer]
            vectors = block if whole else joint_triangle(vectors if piece.start else None, block)
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
        found: dict[str, dict[int, Compared | GradauditError]] = {name: {} for name in means}
        ranks: dict[tuple[str, int], int] = {}
        for name, number in product(means, range(len(self.splits))):
            try:
                ranks[name, number] = means[name].rank(number, self.splits[number])
                permuting.expect_affordable(name)
            except GradauditError as why:
                found[name][number] = why
                ranks.pop((name, number), None)
        for (name, number), permuted in permuting.distances(ranks):
            angles = means[name].angles(number, self.splits[number], ranks[name, number])
            facts: dict[str, JsonValue] = {"k": len(angles), "dimensions": means[name].form.columns}
            compared = Compared(angles, permuted, facts)
            try:
                compared.expect_different()
                found[name][number] = compared
            except NotApplicable as why:
                found[name][number] = why
        yield from found.items()

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
                dtype=torch.float64,
                memory=self.memory,
                seed=self.seed,
            )
        return self._streams[key]
