"""Per-sample gradients of chosen layers, in batches that fit a memory budget.

They are ``vmap(grad)``, or a plain loop where ``vmap`` cannot follow the model: the first two
records are computed both ways, and must agree.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.memory import device_memory, peak_bytes
from gradaudit.models.target import Layer, Target

_TRIAL = 2
_QUICK_BYTES = 16 << 20
"""On the CPU: larger blocks go back to the system after every use, and fetching them again costs
more than the arithmetic."""
_QUICK_BATCH = 16
"""Records at least: of fewer, small layers take less time than calling them
(benchmarks/speed/per_sample_speed.py)."""
_AGREE = 10.0
"""Square roots of the precision, over the largest element, that the two ways may differ by."""

Way = Literal["vmap", "loop"]


@dataclass(frozen=True)
class PerSampleGradients:
    """Per-sample gradients, computed as they are iterated over.

    Iterating yields, batch by batch in the order of the records, a dict from each layer's name to
    its gradients (records, elements): the layer's parameters flattened, in the order of
    ``parameter_names``. It can be iterated over again. What was run is ``held`` by the number of
    its first record and the layer, where there is such a place.
    """

    view: FunctionalModel
    inputs: Tensor
    labels: Tensor
    layers: tuple[Layer, ...]
    way: Way = "vmap"
    batch: int = 1
    held: dict[tuple[int, str], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(self), self.batch):
            yield self.run(start, min(start + self.batch, len(self)), self.layers)

    def run(self, start: int, stop: int, layers: Sequence[Layer]) -> dict[str, Tensor]:
        """Compute the gradients of a batch of records, (records, elements), by layer."""
        held = {} if self.held is None else self.held
        missing = [layer for layer in layers if (start, layer.name) not in held]
        if missing:
            found = self._run(start, stop, missing)
            held |= {(start, name): rows for name, rows in found.items()}
        return {layer.name: held[start, layer.name] for layer in layers}

    def _run(self, start: int, stop: int, layers: Sequence[Layer]) -> dict[str, Tensor]:
        view = replace(self.view, seed=self.view.seed + start)
        records, targets = view.cast(self.inputs[start:stop]), view.cast(self.labels[start:stop])
        gradients = (at_once if self.way == "vmap" else one_by_one)(
            view, names_of(layers), records, targets
        )
        return {
            layer.name: torch.cat([gradients[n].flatten(1) for n in layer.parameter_names], dim=1)
            if len(layer.parameter_names) > 1
            else gradients[layer.parameter_names[0]].flatten(1)
            for layer in layers
        }


def per_sample_gradients(
    target: Target,
    inputs: Tensor,
    labels: Tensor,
    layers: Sequence[Layer],
    *,
    dtype: torch.dtype = torch.float32,
    memory: int = 1 << 30,
    hold: int = 0,
    seed: int = 0,
) -> PerSampleGradients:
    """Compute the gradient of every record's loss by every layer.

    The target is left as it was.

    Args:
        target: the audited model.
        inputs: (records, …), at least one.
        labels: (records, …).
        layers: whose gradients are computed.
        dtype: of the computation.
        memory: bytes that the computation may take (see ``device_memory`` for a GPU), as measured
            on two records; it goes on with single records where that is too little.
        hold: bytes that all records' gradients may take to be held for the next iteration.
        seed: of dropout in training mode; each record has its own masks, which depend on ``batch``.

    Raises:
        NotApplicable: the model couples the records of a batch, so they have no gradients of
            their own.
        AuditError: the model cannot be run on the records, or the labels do not fit.
    """
    view = FunctionalModel.of(target, dtype=dtype, seed=seed)
    records, targets = view.cast(inputs[:_TRIAL]), view.cast(labels[:_TRIAL])
    view.check(records, targets)
    reason = view.coupling(records, targets)
    if reason:
        raise NotApplicable(f"records have no gradients of their own: {reason}{view.remedy}")
    way: Way = "vmap" if _vmapped(view, names_of(layers), records, targets) else "loop"
    gradients = PerSampleGradients(view, inputs, labels, tuple(layers), way)
    peaks = [peak_bytes(partial(gradients.run, 0, n, layers)) for n in (1, _TRIAL)]
    more = max(peaks[1] - peaks[0], 1)
    batch = max(1, 1 + (device_memory(view.device, memory) - peaks[0]) // more)
    if view.device.type == "cpu":
        batch = min(batch, max(_QUICK_BATCH, _QUICK_BYTES // more))
    size = dtype.itemsize * sum(layer.parameters for layer in layers)
    held: dict[tuple[int, str], Tensor] | None = {} if size * len(inputs) <= hold else None
    return replace(gradients, batch=min(batch, len(inputs)), held=held)


def _vmapped(view: FunctionalModel, names: Sequence[str], records: Tensor, targets: Tensor) -> bool:
    """Whether ``vmap`` follows the model, and gives these records the loop's gradients."""
    expected = one_by_one(view, names, records, targets)
    try:
        found = at_once(view, names, records, targets)
    except Exception:  # whatever a model does that a transform cannot follow
        return False
    if view.stochastic(records):
        return True
    largest = max(float(each.abs().amax()) for each in expected.values() if each.numel())
    apart = max(
        float((found[name] - expected[name]).abs().amax()) for name in names if found[name].numel()
    )
    return not apart > _AGREE * torch.finfo(view.dtype).eps ** 0.5 * largest


def at_once(
    view: FunctionalModel, names: Sequence[str], records: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Compute the gradients of all records together, by parameter, with a leading dimension."""
    parameters = {name: view.parameters[name] for name in names}
    of_each = torch.func.vmap(
        torch.func.grad(view.record_loss), in_dims=(None, 0, 0), randomness="different"
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # of a single operator
        gradients: dict[str, Tensor] = of_each(parameters, records, targets)
    return gradients


def one_by_one(
    view: FunctionalModel, names: Sequence[str], records: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Compute the gradients of one record after the other, with a leading dimension."""
    gradients = [
        mean_gradient(replace(view, seed=view.seed + index), names, record[None], target[None])
        for index, (record, target) in enumerate(zip(records, targets, strict=True))
    ]
    return {name: torch.stack([one[name] for one in gradients]) for name in names}


def mean_gradient(
    view: FunctionalModel, names: Sequence[str], records: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Compute the gradient of the batch's loss by each of these parameters, by autograd."""
    leaves = {name: view.parameters[name].detach().requires_grad_() for name in names}
    with torch.enable_grad():
        loss = view.batch_loss(leaves, records, targets)
        if not loss.requires_grad:
            raise AuditError("the loss cannot be differentiated by the model's parameters")
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(names, gradients, strict=True))


def names_of(layers: Sequence[Layer]) -> list[str]:
    """Return the names of the layers' parameters."""
    return [name for layer in layers for name in layer.parameter_names]
