"""Per-sample gradients of chosen layers, batched, in chunks that fit a memory budget.

The gradient of one record's loss by a weight is the sum of outer products G = Σ_t δ_t a_tᵀ over the
positions where the weight is used (Goodfellow 2015, arXiv:1510.01799; Rochette et al. 2019,
arXiv:1912.06015, for convolutions). Parameters that ``Trace`` takes apart are done in this way, at
about the cost of a batched backward pass; the others by vmap of grad, which takes 1.1 to 1.4 times
as long (benchmarks/speed/per_sample_speed.py); and models that vmap cannot follow, record by
record.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.memory import device_memory, peak_bytes
from gradaudit.gradients.trace import Gradients, Trace
from gradaudit.models.target import Layer, Target

_TRIAL = 2
_QUICK_BYTES = 16 << 20
"""On the CPU: larger blocks go back to the system after every use, and fetching them again costs
more than the arithmetic."""
_QUICK_BATCH, _QUICK_CHUNK = 64, 16
"""Records at least: of fewer, small layers take less time than calling them
(benchmarks/speed/per_sample_speed.py)."""
_WRITTEN_AGAIN = 64 << 20
"""Bytes of a chunk at most: the less memory there is, the sooner it is written again."""
PREPARING = 8
"""About how many passes of a single record it takes to look at a model before the first gradient:
8 of ViT-B/16 at 224×224, 5 of GPT-2."""


Way = Literal["factors", "vmap", "loop"]


@dataclass(frozen=True)
class PerSampleGradients:
    """Per-sample gradients, computed as they are iterated over.

    Iterating yields, chunk by chunk in the order of the records, a dict from each layer's name to
    its gradients (records, elements): the layer's parameters flattened, in the order of
    ``parameter_names``. It can be iterated over again. ``ways`` says how each layer's gradients
    are computed; ``chunk`` records' are yielded at once, and ``batch`` records, a multiple of that,
    run through the model at once. What was run is ``held`` by the number of its first record, where
    there is such a place.
    """

    trace: Trace
    inputs: Tensor
    labels: Tensor
    layers: tuple[Layer, ...]
    ways: Mapping[str, Way]
    chunk: int = 1
    batch: int = 1
    held: dict[int, Gradients] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        held = {} if self.held is None else self.held
        for start in range(0, len(self), self.batch):
            stop = min(start + self.batch, len(self))
            gradients = held.get(start) or self.run(start, stop)
            if self.held is not None:
                held[start] = gradients
            for first in range(0, stop - start, self.chunk):
                yield self.formed(gradients, slice(first, first + self.chunk))

    def run(self, start: int, stop: int) -> Gradients:
        """The gradients of a batch of records, separately by record or as one."""
        trace = self.trace.seeded(start)
        records = trace.view.cast(self.inputs[start:stop])
        targets = trace.view.cast(self.labels[start:stop])
        in_a_loop = "loop" in self.ways.values()
        return (one_by_one if in_a_loop else at_once)(trace, records, targets)

    def formed(self, gradients: Gradients, rows: slice) -> dict[str, Tensor]:
        """The gradients of some records of a batch, (records, elements), by layer."""
        return {layer.name: self.formed_layer(gradients, rows, layer) for layer in self.layers}

    def formed_layer(self, gradients: Gradients, rows: slice, layer: Layer) -> Tensor:
        """Form one layer's gradients of some records of a batch, (records, elements)."""
        parts = [self._formed(gradients, rows, name) for name in layer.parameter_names]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _formed(self, gradients: Gradients, rows: slice, name: str) -> Tensor:
        if name in gradients.whole:
            return gradients.whole[name][rows].flatten(1)
        deltas, seen, terms = gradients.deltas, gradients.seen, []
        for k, use in self.trace.uses[name]:
            left = use.left(deltas[k][rows])
            right = use.right(seen[k][rows]).to(left)
            terms.append(use.weight(left @ right.mT, seen[k][rows]))
        return reduce(torch.add, terms)


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
    """The gradient of every record's loss by every layer.

    The target is left as it was. Inputs, at least one, and labels are (records, …). The
    computation may take ``memory`` bytes (see ``device_memory`` for a GPU), as measured on a trial
    of two records; it goes on with single records where that is too little. What the runs give is
    held for the next iteration where that of all records takes ``hold`` bytes at most. Dropout in
    training mode draws from the seed; each record has its own masks, which depend on ``batch``.

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
    trace = _traced(target, view, layers, inputs[:_TRIAL], labels[:_TRIAL])
    ways = {layer.name: _way(trace, layer) for layer in layers}
    gradients = PerSampleGradients(trace, inputs, labels, tuple(layers), ways)
    try:
        trial = _Trial.of(gradients)
    except Exception:  # whatever a model does that a transform cannot follow
        looped: dict[str, Way] = dict.fromkeys(ways, "loop")
        gradients = replace(gradients, trace=_nothing_apart(view, layers), ways=looped)
        trial = _Trial.of(gradients)
    holds = trial.size * len(inputs) <= hold
    return replace(_sized(gradients, trial, memory), held={} if holds else None)


class _Trial(NamedTuple):
    """A run of two records, or of the only one, and bytes of runs of one record and of two."""

    gradients: Gradients
    peaks: tuple[int, ...]

    @classmethod
    def of(cls, gradients: PerSampleGradients) -> Self:
        """Compute one record's gradients, then two records', and measure the memory of both."""
        runs: list[Gradients] = []

        def run(records: int) -> None:
            runs.append(gradients.run(0, records))

        peaks = tuple(peak_bytes(partial(run, n)) for n in (1, _TRIAL))
        return cls(runs[-1], peaks)

    @property
    def size(self) -> int:
        """Return the bytes of one record's gradients."""
        return sum(tensor.nbytes // len(tensor) for tensor in self.gradients.tensors)


def _sized(gradients: PerSampleGradients, trial: _Trial, memory: int) -> PerSampleGradients:
    """Choose a batch and a chunk that take half of the memory each, or less where that is quick.

    Sizes go by what one record takes and what a second one adds.
    """
    running, run = trial.peaks, trial.gradients
    forming = [peak_bytes(partial(gradients.formed, run, slice(0, n))) for n in (1, _TRIAL)]
    device = gradients.trace.view.device
    batch, chunk = (
        _fitting(peaks, device_memory(device, memory) // 2) for peaks in (running, forming)
    )
    if device.type == "cpu":
        batch = min(batch, max(_QUICK_BATCH, _QUICK_BYTES // _more(running)))
        quick = max(_QUICK_CHUNK, _QUICK_BYTES // _more(forming))
        chunk = min(chunk, quick, max(1, _WRITTEN_AGAIN // _more(forming)))
    batch = min(batch, len(gradients))
    chunk = min(chunk, batch)
    return replace(gradients, chunk=chunk, batch=batch // chunk * chunk)


def _fitting(peaks: Sequence[int], memory: int) -> int:
    return max(1, 1 + (memory - peaks[0]) // _more(peaks))


def _more(peaks: Sequence[int]) -> int:
    return max(peaks[1] - peaks[0], 1)


def _traced(
    target: Target, view: FunctionalModel, layers: Sequence[Layer], inputs: Tensor, labels: Tensor
) -> Trace:
    """A trace that is guarded in the target's precision and then computes in that of the view.

    Where the records (a few, and their labels) take different ways through the model, nothing in it
    is taken apart.
    """
    exact = FunctionalModel.of(target, seed=view.seed)
    records, targets = exact.cast(inputs), exact.cast(labels)
    try:
        trace = Trace.of(exact, names_of(layers), records, targets, mixed=True)
        return replace(trace, view=view)
    except (RuntimeError, IndexError):
        return _nothing_apart(view, layers)


def _nothing_apart(view: FunctionalModel, layers: Sequence[Layer]) -> Trace:
    return Trace(view, (), {}, tuple(names_of(layers)), {})


def _way(trace: Trace, layer: Layer) -> Way:
    """The way that a layer's gradients are computed where a transform can follow the model."""
    return "factors" if set(trace.whole).isdisjoint(layer.parameter_names) else "vmap"


def at_once(trace: Trace, records: Tensor, targets: Tensor) -> Gradients:
    """The gradients of all records together, with a leading dimension."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # of a single operator
        one = partial(trace.gradients, tokens=True)
        gradients: Gradients = torch.func.vmap(one, randomness="different")(
            trace.point(records), targets, records
        )
        return gradients


def one_by_one(trace: Trace, records: Tensor, targets: Tensor) -> Gradients:
    """The gradients of one record after the other, whole, with a leading dimension."""
    gradients = [
        mean_gradient(trace.seeded(index).view, trace.whole, record[None], target[None])
        for index, (record, target) in enumerate(zip(records, targets, strict=True))
    ]
    whole = {name: torch.stack([one[name] for one in gradients]) for name in trace.whole}
    return Gradients((), {}, whole)


def mean_gradient(
    view: FunctionalModel, names: Sequence[str], records: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """The gradient of the batch's loss by each of these parameters, by autograd."""
    leaves = {name: view.parameters[name].detach().requires_grad_() for name in names}
    with torch.enable_grad():
        loss = view.batch_loss(leaves, records, targets)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(names, gradients, strict=True))


def names_of(layers: Sequence[Layer]) -> list[str]:
    """The names of the layers' parameters."""
    return [name for layer in layers for name in layer.parameter_names]
