"""The reading ``mean`` compares the row spaces of two groups' mean gradient matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import nn

from gradaudit.audits.subspace.comparing import (
    PrincipalAngles,
    distances,
    leading_directions,
    negligible,
    numerical_rank,
    quick_angles,
    subspace_distances,
)
from gradaudit.audits.subspace.groups import Split
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.executors.workers import Task
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
class MeanGroups:
    """The mean gradients of a split's two groups, of the smaller numerical rank k.

    Attributes:
        form: how a gradient lies in a matrix.
        vectors: gradients, (records, elements).
        k: directions that are compared.
        floor: the largest singular value of a mean that is rounding error.
    """

    form: MatrixForm
    vectors: Array
    split: Split
    k: int
    floor: float

    @classmethod
    def of(cls, form: MatrixForm, vectors: Array, split: Split) -> Self:
        """Find the rank.

        Raises:
            NotApplicable: there is nothing to compare in row spaces of this rank, or the
                permutations would take too long.
            AuditError: the gradients are not finite.
        """
        norm = float(np.linalg.norm(vectors, axis=1).mean())
        if not np.isfinite(norm):
            raise AuditError(NOT_FINITE)
        floor = negligible((form.rows, form.columns)) * norm
        k = min(numerical_rank(mean, floor) for mean in _means(form, vectors, split.member))
        if k == 0:
            raise NotApplicable("a group's mean gradient is zero and spans nothing")
        if k == form.columns:
            raise NotApplicable(
                f"row space is everything: {form.rows} rows of {k} columns; use --reading samples"
            )
        few, many = sorted((form.rows, form.columns))
        if 2 * len(split.orders) * (6 * many + 20 * few) * few**2 > _MOST_WORK:
            raise NotApplicable(
                f"row spaces of {form.rows} x {form.columns} for {len(split.orders)} permutations "
                "would take too long; use --reading samples, or fewer --permutations"
            )
        return cls(form, vectors, split, k, floor)

    def portions(self, memory: int) -> list[Task[dict[str, Array]]]:
        """Compute distances under the permutations, as many at once as fit the memory."""
        step = max(1, memory // (_BYTES * _COPIES * self.vectors.shape[1]))
        starts = range(0, len(self.split.orders), step)
        return [partial(self._permuted, slice(start, start + step)) for start in starts]

    def _permuted(self, at: slice, advance: Advance) -> dict[str, Array]:
        labels = self.split.member[self.split.orders[at]]
        found = distances(quick_angles(*self._directions(labels, reliable=_ROUGHLY)))
        advance(len(labels))
        return found

    def compared(self, permuted: Sequence[Mapping[str, Array]]) -> PrincipalAngles | NotApplicable:
        """Compare the observed groups with permuted ones, unless all are equally far apart."""
        facts: dict[str, JsonValue] = {"k": self.k, "dimensions": self.form.columns}
        observed = subspace_distances(*self._directions(self.split.member))
        return PrincipalAngles.unless_alike(observed, permuted, facts)

    def _directions(self, members: NDArray[np.bool_], **how: float) -> Iterator[Array]:
        for mean in _means(self.form, self.vectors, members):
            yield leading_directions(mean, self.k, self.floor, **how)


def _means(form: MatrixForm, vectors: Array, members: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Compute both groups' means, (…, rows, columns), of members (…, records)."""
    inside, outside = (
        group @ vectors / group.sum(axis=-1, keepdims=True)
        for group in (members.astype(np.float64), (~members).astype(np.float64))
    )
    return form.matrix(inside), form.matrix(outside)
