"""Gradients of single records at each layer, from which signs of crafting are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gradaudit.data.records import Records
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.operations import Linear, Transposed
from gradaudit.gradients.per_sample import PerSampleGradients, per_sample_gradients
from gradaudit.gradients.trace import Gradients
from gradaudit.models.module_kinds import outputs_second
from gradaudit.models.target import Layer, Target

UNITS = 256
"""Units of a layer that are looked at, at most."""


@dataclass(frozen=True)
class LinearMap:
    """A layer that is one linear map.

    A unit is a record, or a position of one, that the map is applied to.

    Attributes:
        weight: (rows, inputs).
        active: (units, rows), whether the loss moves with what the row gives out of the unit.
        site: its place in the forward pass.
        positions: units of a record.
    """

    weight: Tensor
    active: Tensor
    site: int
    positions: int


@dataclass(frozen=True)
class LayerGradients:
    """One layer's gradients of single records.

    Attributes:
        norms: (records,) ‖g_i‖.
        rows: (records, rows) of the part of each row of the weight; None where it has no rows.
        linear: None where the layer is something else, or is used several times.
    """

    norms: Tensor
    rows: Tensor | None
    linear: LinearMap | None


@dataclass(frozen=True)
class ModelGradients:
    """Gradients of single records at all layers, and the loss's gradient by the outputs.

    Attributes:
        layers: by name, in order.
        residuals: (records,) norms of the loss's gradient by the outputs.
        last: the linear layer that gives the outputs; None where none does.
    """

    layers: Mapping[str, LayerGradients]
    residuals: Tensor
    last: str | None


@dataclass
class _LayerParts:
    """The parts of one layer's gradients that chunks of records gave."""

    target: Target
    gradients: PerSampleGradients
    layer: Layer
    norms: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    active: list[Tensor] = field(default_factory=list)

    @property
    def _name(self) -> str:
        return self.layer.parameter_names[0]

    @cached_property
    def _turned(self) -> bool:
        return outputs_second(self.target.model.get_submodule(self._name.rpartition(".")[0]))

    @cached_property
    def _weight(self) -> Tensor | None:
        """The layer's only weight, (rows, …); None where it has none of two dimensions or more."""
        if len(self.layer.parameter_names) > 1 or not self._name.endswith("weight"):
            return None
        weight = self.target.model.get_parameter(self._name).detach()
        if weight.dim() < 2:
            return None
        return weight.transpose(0, 1) if self._turned else weight

    @cached_property
    def _use(self) -> tuple[int, Linear] | None:
        """The site and operation of a weight that is used once, as a linear map."""
        single = len(self.layer.parameter_names) == 1
        uses = self.gradients.trace.uses.get(self._name, ()) if single else ()
        if len(uses) != 1 or not isinstance(uses[0][1], Linear | Transposed):
            return None
        return uses[0][0], uses[0][1]

    def add(self, run: Gradients, chunk: slice) -> None:
        """Add the gradients' norms and the active units of a chunk of records."""
        if self._use is not None:
            site, operation = self._use
            left = operation.left(run.deltas[site][chunk])[:, 0]
            self.active.append((left != 0).mT.flatten(0, 1).cpu())
        if self._weight is None:
            whole = self.gradients.formed_layer(run, chunk, self.layer)
            norms = torch.linalg.vector_norm(whole, dim=1, dtype=torch.float64)
            self.norms.append(norms.cpu())
            return
        rows = self._factored_rows(run, chunk)
        if rows is None:
            whole = self.gradients.formed_layer(run, chunk, self.layer)
            shape = self.target.model.get_parameter(self._name).shape
            matrix = whole.reshape(len(whole), *shape)
            matrix = matrix.transpose(1, 2) if self._turned else matrix
            rows = matrix.flatten(2).norm(dim=2).double()
        self.rows.append(rows.cpu())
        self.norms.append(self.rows[-1].norm(dim=1))

    def _factored_rows(self, run: Gradients, chunk: slice) -> Tensor | None:
        """Compute row norms from the factors of G = Δ Aᵀ; None where forming G is less work.

        A row's square is δ (Aᵀ A) δᵀ, in double precision, for the positions may cancel.
        """
        if self._use is None:
            return None
        site, operation = self._use
        left = operation.left(run.deltas[site][chunk])[:, 0]
        right = operation.right(run.seen[site][chunk])[:, 0].to(left)
        delta, seen = operation.laid_out(left, right)
        if self._turned:
            delta, seen = seen, delta
        rows, columns, positions = delta.shape[1], seen.shape[1], seen.shape[2]
        if positions * (rows + columns) > rows * columns:
            return None
        delta, seen = delta.double(), seen.double()
        squares: Tensor = (delta @ (seen.mT @ seen) * delta).sum(dim=2)
        return squares.clamp(min=0).sqrt()

    def together(self) -> LayerGradients:
        """Join the parts of all records."""
        rows = torch.cat(self.rows) if self.rows else None
        linear = None
        if self._use is not None and self._weight is not None and self._weight.dim() == 2:
            units, records = torch.cat(self.active), len(self.gradients)
            some = torch.linspace(0, len(units) - 1, min(UNITS, len(units))).long()
            weight = self._weight.cpu()
            linear = LinearMap(weight, units[some], self._use[0], len(units) // records)
        return LayerGradients(torch.cat(self.norms), rows, linear)


def gradients_of_records(
    target: Target, records: Records, layers: Sequence[Layer], memory: int
) -> ModelGradients:
    """Compute the layers' gradients of at least two single records.

    Raises:
        NotApplicable: records have no gradients of their own.
        AuditError: the model cannot be run on the records, or the labels do not fit.
    """
    gradients = per_sample_gradients(target, records.inputs, records.labels, layers, memory=memory)
    parts = {layer.name: _LayerParts(target, gradients, layer) for layer in layers}
    for start in range(0, len(gradients), gradients.batch):
        stop = min(start + gradients.batch, len(gradients))
        run = gradients.run(start, stop)
        for first in range(0, stop - start, gradients.chunk):
            for part in parts.values():
                part.add(run, slice(first, min(first + gradients.chunk, stop - start)))
    found = {name: part.together() for name, part in parts.items()}
    residuals, widths = _residuals(target, records)
    return ModelGradients(found, residuals, _last(found, widths))


def _residuals(target: Target, records: Records) -> tuple[Tensor, Sequence[int]]:
    """(records,) norms of ∂ℓ/∂outputs, and the shape of a record's outputs, of one at least."""
    model = FunctionalModel.of(target)
    with torch.no_grad():
        outputs = model.outputs({}, model.cast(records.inputs))
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        losses = model.loss.per_record(leaf, model.cast(records.labels)).sum()
        (slope,) = torch.autograd.grad(losses, leaf)
    each = slope.reshape(len(slope), -1)
    norms = torch.linalg.vector_norm(each, dim=1, dtype=torch.float64)
    return norms.cpu(), outputs.shape[1:] or (1,)


def _last(found: Mapping[str, LayerGradients], widths: Sequence[int]) -> str | None:
    """Find the last linear layer, if it has as many rows as the model has outputs."""
    maps = {name: sensed.linear for name, sensed in found.items() if sensed.linear is not None}
    name = max(maps, key=lambda name: maps[name].site, default=None)
    return name if name is not None and len(maps[name].weight) in widths else None
