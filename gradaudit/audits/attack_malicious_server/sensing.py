"""Gradients of single records at each layer, from which signs of crafting are computed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
class _Parts:
    """The parts of one layer's gradients that chunks of records gave."""

    norms: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    active: list[Tensor] = field(default_factory=list)


def gradients_of_records(
    target: Target, records: Records, layers: Sequence[Layer], memory: int
) -> ModelGradients:
    """Compute the layers' gradients of at least two single records.

    Raises:
        NotApplicable: records have no gradients of their own.
        AuditError: the model cannot be run on the records, or the labels do not fit.
    """
    gradients = per_sample_gradients(target, records.inputs, records.labels, layers, memory=memory)
    parts = {layer.name: _Parts() for layer in layers}
    for run, chunk in _chunks(gradients):
        for layer in layers:
            _look(target, gradients, run, chunk, layer, parts[layer.name])
    found = {
        layer.name: LayerGradients(
            norms=torch.cat(parts[layer.name].norms),
            rows=torch.cat(parts[layer.name].rows) if parts[layer.name].rows else None,
            linear=_linear(target, gradients, layer, parts[layer.name].active),
        )
        for layer in layers
    }
    residuals, widths = _residuals(target, records)
    return ModelGradients(found, residuals, _last(found, widths))


def _chunks(gradients: PerSampleGradients) -> Iterator[tuple[Gradients, slice]]:
    for start in range(0, len(gradients), gradients.batch):
        stop = min(start + gradients.batch, len(gradients))
        run = gradients.run(start, stop)
        for first in range(0, stop - start, gradients.chunk):
            yield run, slice(first, min(first + gradients.chunk, stop - start))


def _look(
    target: Target,
    gradients: PerSampleGradients,
    run: Gradients,
    chunk: slice,
    layer: Layer,
    parts: _Parts,
) -> None:
    use, matrix = _use(gradients, layer), _matrix(target, layer)
    if use is not None:
        left = use[1].left(run.deltas[use[0]][chunk])[:, 0]
        parts.active.append((left != 0).mT.flatten(0, 1).cpu())
    if matrix.dim() > 1:
        rows = None if use is None else _factored_rows(target, run, chunk, layer, use)
        if rows is None:
            rows = _formed_rows(target, gradients.formed_layer(run, chunk, layer), layer)
        parts.rows.append(rows.cpu())
        parts.norms.append(parts.rows[-1].norm(dim=1))
        return
    whole = gradients.formed_layer(run, chunk, layer)
    parts.norms.append(torch.linalg.vector_norm(whole, dim=1, dtype=torch.float64).cpu())


def _formed_rows(target: Target, whole: Tensor, layer: Layer) -> Tensor:
    """Compute norms (records, rows) of the rows of gradients (records, elements)."""
    matrix = whole.reshape(len(whole), *target.model.get_parameter(_name(layer)).shape)
    rows = matrix.transpose(1, 2) if _turned(target, layer) else matrix
    norms: Tensor = rows.flatten(2).norm(dim=2)
    return norms.double()


def _factored_rows(
    target: Target, run: Gradients, chunk: slice, layer: Layer, use: tuple[int, Linear]
) -> Tensor | None:
    """Compute row norms from the factors of G = Δ Aᵀ; None where forming G is less work.

    A row's square is δ (Aᵀ A) δᵀ, in double precision, for the positions may cancel.
    """
    site, operation = use
    left = operation.left(run.deltas[site][chunk])[:, 0]
    right = operation.right(run.seen[site][chunk])[:, 0].to(left)
    delta, seen = operation.laid_out(left, right)
    if _turned(target, layer):
        delta, seen = seen, delta
    rows, columns, positions = delta.shape[1], seen.shape[1], seen.shape[2]
    if positions * (rows + columns) > rows * columns:
        return None
    delta, seen = delta.double(), seen.double()
    squares: Tensor = (delta @ (seen.mT @ seen) * delta).sum(dim=2)
    return squares.clamp(min=0).sqrt()


def _name(layer: Layer) -> str:
    return layer.parameter_names[0]


def _turned(target: Target, layer: Layer) -> bool:
    return outputs_second(target.model.get_submodule(_name(layer).rpartition(".")[0]))


def _matrix(target: Target, layer: Layer) -> Tensor:
    """Returns the layer's only weight, (rows, …); without dimensions where it has none."""
    if len(layer.parameter_names) > 1 or not _name(layer).endswith("weight"):
        return torch.zeros(())
    weight = target.model.get_parameter(_name(layer)).detach()
    if weight.dim() < 2:
        return torch.zeros(())
    return weight.transpose(0, 1) if _turned(target, layer) else weight


def _use(gradients: PerSampleGradients, layer: Layer) -> tuple[int, Linear] | None:
    """The site and operation of a weight that is used once, as a linear map."""
    uses = gradients.trace.uses.get(_name(layer), ()) if len(layer.parameter_names) == 1 else ()
    if len(uses) != 1 or not isinstance(uses[0][1], Linear | Transposed):
        return None
    return uses[0][0], uses[0][1]


def _linear(
    target: Target, gradients: PerSampleGradients, layer: Layer, active: Sequence[Tensor]
) -> LinearMap | None:
    use, weight = _use(gradients, layer), _matrix(target, layer)
    if use is None or weight.dim() != 2:
        return None
    units = torch.cat(list(active))
    some = torch.linspace(0, len(units) - 1, min(UNITS, len(units))).long()
    return LinearMap(weight.cpu(), units[some], use[0], len(units) // len(gradients))


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
