"""The reading ``mean`` compares the row spaces of two groups' mean gradient matrices.

Means of permuted groups are sums over records, so one run over the records gives those of as many
permutations as memory holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gradaudit.audits.subspace.comparing import (
    distances,
    leading_directions,
    negligible,
    numerical_rank,
    principal_angles,
    quick_angles,
)
from gradaudit.audits.subspace.groups import Split
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.executors.workers import ALONE, Workers
from gradaudit.gradients.memory import ColumnRange, Stream, as_array, counted, names, passes
from gradaudit.models.module_kinds import outputs_second
from gradaudit.models.target import Layer
from gradaudit.progress import Advance

Array = NDArray[np.float64]
NOT_FINITE = "its gradients are not finite; look at the weights and the inputs"
_ROUGHLY = 1e-6
_BYTES = 8
_COPIES = 4
"""Times that a group's mean is held: its sum, both means, their directions."""
_MOST_WORK = 1e13
"""Floating point operations that the permutations of one layer may take; some ten minutes."""


@dataclass(frozen=True)
class MatrixForm:
    """The layout of a layer's gradient as a matrix with one row for each output.

    Attributes:
        shapes: of the layer's parameters, in the order of its elements.
        outputs_second: whether a parameter's second dimension counts outputs, as in transposed
            convolutions.
    """

    shapes: tuple[tuple[int, ...], ...]
    outputs_second: bool = False

    @classmethod
    def of(cls, layer: Layer, model: nn.Module) -> MatrixForm:
        """Find a layer's form; several parameters (of a recurrent cell) lie side by side.

        Raises:
            NotApplicable: its parameters have different numbers of outputs.
        """
        parameters = dict(model.named_parameters())
        shapes = tuple(tuple(parameters[name].shape) or (1,) for name in layer.parameter_names)
        module = model.get_submodule("" if layer.name == "(model)" else layer.name)
        form = cls(shapes, outputs_second(module))
        if len({form._outputs(shape) for shape in shapes}) > 1:
            raise NotApplicable(
                "its parameters have different numbers of outputs and make no matrix; "
                "use --reading samples"
            )
        return form

    @property
    def rows(self) -> int:
        """The number of rows, C_out."""
        return self._outputs(self.shapes[0])

    @property
    def columns(self) -> int:
        """The number of columns, 1 for a vector of gains."""
        return sum(math.prod(shape) for shape in self.shapes) // self.rows

    def matrix(self, elements: Array) -> Array:
        """Shape (…, elements) as (…, rows, columns)."""
        leading = elements.shape[:-1]
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = []
        for part, shape in zip(np.split(elements, ends, axis=-1), self.shapes, strict=True):
            whole = part.reshape(*leading, *shape)
            if self.outputs_second:
                whole = np.moveaxis(whole, len(leading) + 1, len(leading))
            parts.append(whole.reshape(*leading, self.rows, -1))
        return np.concatenate(parts, axis=-1)

    def _outputs(self, shape: tuple[int, ...]) -> int:
        return shape[1] if self.outputs_second else shape[0]


@dataclass(frozen=True)
class Means:
    """One layer's mean gradients of the groups of every split.

    Attributes:
        form: how a gradient lies in a matrix.
        total: the sum over all records, (elements,).
        sums: the sum over the records with the value, (splits, elements).
        norm: the mean norm of a record's gradient: sums are rounded relative to it.
    """

    form: MatrixForm
    total: Array
    sums: Array
    norm: float

    @property
    def floor(self) -> float:
        """The largest singular value of a mean that is rounding error."""
        return negligible((self.form.rows, self.form.columns)) * self.norm

    def matrices(self, sums: Array, members: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Shape both groups' means as (…, rows, columns).

        Args:
            sums: over the records with the value, (…, elements).
            members: which these are, (…, records).
        """
        inside = members.sum(axis=-1, keepdims=True)
        outside = members.shape[-1] - inside
        return self.form.matrix(sums / inside), self.form.matrix((self.total - sums) / outside)

    def rank(self, number: int, split: Split) -> int:
        """Compute the smaller numerical rank of a split's two groups.

        Raises:
            NotApplicable: there is nothing to compare in row spaces of this rank.
            AuditError: the gradients are not finite.
        """
        if not np.isfinite(self.norm):
            raise AuditError(NOT_FINITE)
        means = self.matrices(self.sums[number], split.member)
        k = min(numerical_rank(mean, self.floor) for mean in means)
        if k == 0:
            raise NotApplicable("a group's mean gradient is zero and spans nothing")
        if k == self.form.columns:
            raise NotApplicable(
                f"row space is everything: {self.form.rows} rows of {k} columns; "
                "use --reading samples"
            )
        return k

    def angles(self, number: int, split: Split, k: int) -> Array:
        """Compute principal angles (k,) between the row spaces of a split's groups."""
        means = self.matrices(self.sums[number], split.member)
        return principal_angles(*(leading_directions(mean, k, self.floor) for mean in means))

    def quick_angles(self, sums: Array, members: NDArray[np.bool_], k: int) -> Array:
        """Compute principal angles (permutations, k) from the permuted groups' sums."""
        means, rough = self.matrices(sums, members), {"reliable": _ROUGHLY}
        return quick_angles(*(leading_directions(mean, k, self.floor, **rough) for mean in means))


def mean_gradients(
    stream: Stream, forms: Mapping[str, MatrixForm], splits: Sequence[Split], memory: int
) -> Iterator[tuple[str, Means]]:
    """Yield the mean gradients of the observed groups, layer by layer.

    Args:
        stream: gives the gradients.
        forms: of the layers, by name.
        splits: the comparisons.
        memory: bytes that the sums held at one time may take.
    """
    weights = np.stack([np.ones(len(splits[0].member)), *(split.member for split in splits)])
    sizes = {name: form.rows * form.columns for name, form in forms.items()}
    costs = {name: _BYTES * len(weights) * size for name, size in sizes.items()}
    for pieces in passes(dict.fromkeys(forms, 1), memory, costs):
        sums = {name: np.zeros((len(weights), sizes[name])) for name in names(pieces)}
        norms = dict.fromkeys(sums, 0.0)
        for rows, chunk in counted(stream(list(sums))):
            for name, total in sums.items():
                values = as_array(chunk[name])
                total += weights[:, rows] @ values
                norms[name] += float(np.linalg.norm(values, axis=1).sum())
        for name, (total, *parts) in sums.items():
            norm = norms[name] / weights.shape[1]
            yield name, Means(forms[name], total, np.stack(parts), norm)


@dataclass(frozen=True)
class Permuting:
    """Computes distances between the row spaces of groups with permuted labels.

    Attributes:
        means: of the observed groups, by layer.
        splits: the comparisons, with as many permutations each.
        memory: bytes that permuted means may take.
    """

    stream: Stream
    means: Mapping[str, Means]
    splits: Sequence[Split]
    memory: int

    @property
    def count(self) -> int:
        """The number of permutations."""
        return len(self.splits[0].orders)

    def expect_affordable(self, name: str) -> None:
        """Raise where the permutations of a layer would take too long.

        Raises:
            NotApplicable: with what to do instead.
        """
        form = self.means[name].form
        few, many = sorted((form.rows, form.columns))
        work = 2 * self.count * (6 * many + 20 * few) * few**2
        if work > _MOST_WORK:
            raise NotApplicable(
                f"row spaces of {form.rows} x {form.columns} for {self.count} permutations "
                "would take too long; use --reading samples, or fewer --permutations"
            )

    def distances(
        self, ranks: Mapping[tuple[str, int], int], advance: Advance, workers: Workers = ALONE
    ) -> dict[tuple[str, int], dict[str, Array]]:
        """Compute every distance, (permutations,) by its name.

        Args:
            ranks: how many directions are compared, by layer and number of the split.
            advance: called with the number of permutations that are done.
            workers: who share in the runs over the records.

        Returns:
            The same keys in the same order, with their distances.
        """
        keys = {str(position): key for position, key in enumerate(ranks)}
        numbers = {key: self.means[name].total.size for key, (name, _) in keys.items()}
        costs = {key: _BYTES * _COPIES * size for key, size in numbers.items()}
        groups = [*passes(dict.fromkeys(keys, self.count), self.memory, costs)]
        tasks = [
            partial(self._of_a_run, [(*keys[piece.layer], piece) for piece in pieces], ranks)
            for pieces in groups
        ]
        found = chain.from_iterable(workers.share(tasks, advance, patience=0))
        parts: dict[tuple[str, int], list[dict[str, Array]]] = {key: [] for key in ranks}
        for piece, part in zip(chain.from_iterable(groups), found, strict=True):
            parts[keys[piece.layer]].append(part)
        return {
            key: {name: np.concatenate([part[name] for part in some]) for name in some[0]}
            for key, some in parts.items()
        }

    def _of_a_run(
        self,
        wanted: Sequence[tuple[str, int, ColumnRange]],
        ranks: Mapping[tuple[str, int], int],
        advance: Advance,
    ) -> list[dict[str, Array]]:
        sums, found = self._sums(wanted), []
        for name, number, piece in wanted:
            members = self._members(number, piece)
            angles = self.means[name].quick_angles(sums.pop(0), members, ranks[name, number])
            found.append(distances(angles))
            advance(piece.width)
        return found

    def _sums(self, wanted: Sequence[tuple[str, int, ColumnRange]]) -> list[Array]:
        """Yield sums over the permuted groups, (width, elements) for each piece."""
        sums = [np.zeros((piece.width, self.means[name].total.size)) for name, _, piece in wanted]
        for rows, chunk in counted(self.stream(list({name: 0 for name, _, _ in wanted}))):
            values = {name: as_array(tensor) for name, tensor in chunk.items()}
            for (name, number, piece), total in zip(wanted, sums, strict=True):
                members = self._members(number, piece)[:, rows]
                total += members.astype(np.float64) @ values[name]
        return sums

    def _members(self, number: int, piece: ColumnRange) -> NDArray[np.bool_]:
        """Marks the records that have the value under some permutations, (width, records)."""
        split = self.splits[number]
        return split.member[split.orders[piece.start : piece.stop]]
