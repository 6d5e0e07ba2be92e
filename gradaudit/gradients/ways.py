"""The ways to the gradients of single records: by factors, by vmap of grad, by a loop."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.operations import Operation
from gradaudit.gradients.trace import Gradients, Trace
from gradaudit.models.target import Layer, Target

Way = Literal["factors", "vmap", "loop"]


def traced(
    target: Target, view: FunctionalModel, layers: Sequence[Layer], inputs: Tensor, labels: Tensor
) -> Trace:
    """A trace that is guarded in float64 and then computes in the precision of the view.

    Args:
        target: the audited model.
        view: what the trace computes with.
        layers: whose parameters are traced.
        inputs: (records, …), a few.
        labels: (records, …).

    Returns:
        The trace; where the records take different ways through the model, nothing in it is
        taken apart.
    """
    exact = FunctionalModel.of(target, dtype=torch.float64, seed=view.seed)
    records, targets = exact.cast(inputs), exact.cast(labels)
    try:
        return replace(Trace.of(exact, names_of(layers), records, targets), view=view)
    except (RuntimeError, IndexError):
        return _whole(view, layers)


def _whole(view: FunctionalModel, layers: Sequence[Layer]) -> Trace:
    return Trace(view, (), {}, tuple(names_of(layers)), None)


def choose_ways(
    trace: Trace, layers: Sequence[Layer], records: Tensor, targets: Tensor
) -> tuple[Trace, dict[str, Way]]:
    """The trace to use, and the way that each layer's gradients are computed with it, by name."""
    try:
        at_once(trace, records, targets)
    except Exception:  # whatever a model does that a transform cannot follow
        return _whole(trace.view, layers), {layer.name: "loop" for layer in layers}
    whole = set(trace.whole)
    return trace, {
        layer.name: "factors" if whole.isdisjoint(layer.parameter_names) else "vmap"
        for layer in layers
    }


def at_once(trace: Trace, records: Tensor, targets: Tensor) -> Gradients:
    """The gradients of all records together, with a leading dimension."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # of a single operator
        points = trace.point(records)
        gradients = torch.func.vmap(trace.gradients, randomness="different")(
            points, targets, records
        )
        if trace.embedded is None:
            return gradients
        tokens = torch.func.vmap(trace.tokens, randomness="different")(records)
        return gradients._replace(seen={**gradients.seen, **tokens})


def one_by_one(trace: Trace, records: Tensor, targets: Tensor) -> Gradients:
    """The gradients of one record after the other, whole, with a leading dimension."""
    gradients = [
        mean_gradient(trace.seeded(index).view, trace.whole, record[None], target[None])
        for index, (record, target) in enumerate(zip(records, targets, strict=True))
    ]
    whole = {
        name: torch.stack([of_record[name] for of_record in gradients]) for name in trace.whole
    }
    return Gradients((), {}, whole)


def product(operation: Operation, delta: Tensor, seen: Tensor) -> Tensor:
    """The gradient of one use, (records, elements), from what came in and δ."""
    left = operation.left(delta)
    right = operation.right(seen).to(left)
    return operation.weight(left @ right.mT, seen)


def mean_gradient(
    view: FunctionalModel, names: Sequence[str], records: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """The gradient of the batch's loss by each of these parameters, by autograd."""
    leaves = {name: view.parameters[name].clone().requires_grad_() for name in names}
    with torch.enable_grad():
        loss = view.batch_loss(leaves, records, targets)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(names, gradients, strict=True))


def names_of(layers: Sequence[Layer]) -> list[str]:
    """The names of the layers' parameters."""
    return [name for layer in layers for name in layer.parameter_names]
