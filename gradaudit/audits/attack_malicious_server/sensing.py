"""Gradients of single records at each layer, from which signs of crafting are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradaudit.data.records import Records
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.module_kinds import outputs_second
from gradaudit.models.target import Layer, Target
from gradaudit.ranks.observe import watching

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


def gradients_of_records(
    target: Target, records: Records, layers: Sequence[Layer], memory: int
) -> ModelGradients:
    """Compute the layers' gradients of at least two single records.

    Raises:
        NotApplicable: records have no gradients of their own.
        AuditError: the model cannot be run on the records, or the labels do not fit.
    """
    gradients = per_sample_gradients(target, records.inputs, records.labels, layers, memory=memory)
    parts: dict[str, list[tuple[Tensor, Tensor | None]]] = {layer.name: [] for layer in layers}
    for batch in gradients:
        for layer in layers:
            parts[layer.name].append(_norms(target, layer, batch.pop(layer.name)))
    maps = _linear_maps(target, records, layers, gradients.batch)
    found = {}
    for name, of_layer in parts.items():
        norms, rows = zip(*of_layer, strict=True)
        by_row = None if rows[0] is None else torch.cat(rows)
        found[name] = LayerGradients(torch.cat(norms), by_row, maps.get(name))
    residuals, widths = _residuals(target, records)
    return ModelGradients(found, residuals, _last(found, widths))


def _weight(target: Target, layer: Layer) -> Tensor | None:
    """The layer's only weight, (rows, …); None where it has none of two dimensions or more."""
    name = layer.parameter_names[0]
    if len(layer.parameter_names) > 1 or not name.endswith("weight"):
        return None
    weight = target.model.get_parameter(name).detach()
    if weight.dim() < 2:
        return None
    return weight.transpose(0, 1) if _turned(target, layer) else weight


def _turned(target: Target, layer: Layer) -> bool:
    return outputs_second(target.model.get_submodule(layer.parameter_names[0].rpartition(".")[0]))


def _norms(target: Target, layer: Layer, gradients: Tensor) -> tuple[Tensor, Tensor | None]:
    """Norms of gradients (records, elements), and of the part of each row of the weight."""
    if _weight(target, layer) is None:
        return torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64).cpu(), None
    name = layer.parameter_names[0]
    matrix = gradients.reshape(len(gradients), *target.model.get_parameter(name).shape)
    if _turned(target, layer):
        matrix = matrix.transpose(1, 2)
    rows = matrix.flatten(2).norm(dim=2).double().cpu()
    return rows.norm(dim=1), rows


def _linear_maps(
    target: Target, records: Records, layers: Sequence[Layer], batch: int
) -> dict[str, LinearMap]:
    """The layers that are one linear map, used once, with the activity of some of their units."""
    model = FunctionalModel.of(target, dtype=torch.float32)
    weights = {layer.name: _weight(target, layer) for layer in layers}
    modules = {
        name: module
        for name, weight in weights.items()
        if weight is not None and _is_linear(module := target.model.get_submodule(name))
    }
    order: list[str] = []
    active: dict[str, list[Tensor]] = {}
    batch = 1 if target.loss.alone else batch
    for start in range(0, len(records.inputs), batch):
        order, deltas = _output_gradients(model, records, slice(start, start + batch), modules)
        for name, delta in zip(order, deltas, strict=True):
            active.setdefault(name, []).append((delta != 0).flatten(0, -2).cpu())
    maps = {}
    for site, name in enumerate(order):
        if order.count(name) == 1:
            units = torch.cat(active[name])
            some = torch.linspace(0, len(units) - 1, min(UNITS, len(units))).long()
            weight = weights[name]
            assert weight is not None
            per_record = len(units) // len(records.inputs)
            maps[name] = LinearMap(weight.cpu(), units[some], site, per_record)
    return maps


def _is_linear(module: nn.Module) -> bool:
    """Whether it is a linear layer, that of transformers (Conv1D) included."""
    return isinstance(module, nn.Linear) or hasattr(module, "nf")


def _output_gradients(
    model: FunctionalModel, records: Records, rows: slice, modules: Mapping[str, nn.Module]
) -> tuple[list[str], Sequence[Tensor]]:
    """The modules in order of their calls, with the losses' gradient at their outputs."""
    order: list[str] = []
    offsets: list[Tensor] = []

    def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        order.append(name)
        offsets.append(torch.zeros_like(output, requires_grad=True))
        return output + offsets[-1]

    inputs, labels = model.cast(records.inputs[rows]), model.cast(records.labels[rows])
    with watching(modules, look), torch.enable_grad():
        loss = model.losses({}, inputs, labels).sum()
    if not offsets:
        return order, ()
    return order, torch.autograd.grad(loss, offsets, materialize_grads=True, allow_unused=True)


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
