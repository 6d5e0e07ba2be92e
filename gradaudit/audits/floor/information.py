"""Fisher information of a noisy update, Ã = C^½ E[JᵀJ] C^½ / σ², from drawn records."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from gradaudit.audits.floor.jacobians import jacobian_products
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release, clipped
from gradaudit.core.randomness import torch_rng
from gradaudit.errors import NotApplicable
from gradaudit.executors.workers import shared_out
from gradaudit.gradients.differentiation import Batch, Differentiation, checked, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import names_of
from gradaudit.gradients.trace import Trace
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Advance

_HELD = 1 << 30
"""Bytes that all layers' information may take; more records then go into each unit."""
_UNIT, _UNITS = 4, 64
"""Records of a unit, at least, and units, at most."""
_AT_ONCE = 128
_WORKING_SET = 96 << 20
_ELEMENT, _COPIES = 8, 8


def layer_information(
    target: Target,
    layers: Sequence[Layer],
    prior: GaussianPrior,
    labels: Tensor,
    *,
    shape: Sequence[int],
    seed: int,
    clips: Sequence[Release] = (),
    memory: int = 1 << 30,
    advance: Advance = lambda _: None,
    workers: int = 1,
) -> dict[str, Tensor]:
    """C^½ E[JᵀJ] C^½ of every layer's gradient, for noise of variance one, from drawn records.

    Args:
        target: the model with its loss; left as it is.
        layers: with biases where these are shared, as ``layers_of(model, with_bias=True)``.
        prior: what records are drawn from.
        labels: (records, …), four or more, of as many records to draw.
        shape: of one record.
        seed: of the records and of random directions.
        clips: what is clipped together before the noise; nothing without.
        memory: bytes that a chunk of records may take.
        advance: called with the number of records that are done.
        workers: who share in the records.

    Returns:
        By layer, averages over units of records, (units, probes, probes).

    Raises:
        AuditError: the gradients cannot be differentiated by the records.
        NotApplicable: records have no gradients of their own.
    """
    view = FunctionalModel.of(target, dtype=torch.float64, seed=seed)
    drawn = prior.draw(len(labels), torch_rng(seed, "floor", "records"))
    inputs, labels = view.cast(drawn.reshape(-1, *shape)), view.cast(labels)
    _expect_own_gradients(view, inputs[:2], labels[:2])
    trace = Trace.of(view, names_of(layers), inputs[:1], labels[:1])
    batch = Batch(trace, inputs, inputs, labels, range(len(inputs)))
    way = checked(fastest(batch, "point"), batch, "point")
    held = _HELD // (_ELEMENT * len(prior.counts) ** 2 * len(layers))
    count = max(2, min(len(labels) // _UNIT, _UNITS, held))
    at = [len(labels) * unit // count for unit in range(count + 1)]
    size = 1 if prior.grouped else _chunk(batch, layers, prior, min(_WORKING_SET, memory // 4))
    parts = (batch.part(slice(*ends)) for ends in pairwise(at))
    how = way, tuple(layers), prior, tuple(clips), size, seed
    found = shared_out([partial(_of_unit, part, *how) for part in parts], workers, advance)
    return {layer.name: torch.stack([unit[layer.name] for unit in found]) for layer in layers}


def _of_unit(
    batch: Batch,
    way: Differentiation,
    layers: Sequence[Layer],
    prior: GaussianPrior,
    clips: Sequence[Release],
    size: int,
    seed: int,
    advance: Advance,
) -> dict[str, Tensor]:
    """Average C^½ JᵀJ C^½ over a unit's records."""
    whole = sum(batch.trace.view.parameters[name].numel() for name in batch.trace.whole)
    at_once = min(_AT_ONCE, max(1, _WORKING_SET // (_ELEMENT * _COPIES * max(1, whole))))
    sums: dict[str, Tensor] = {}
    for start in range(0, len(batch.records), size):
        part = batch.part(slice(start, start + size))
        drawn = prior.probes(torch_rng(seed, "floor", "probes", part.indices.start))
        asked = drawn.to(part.points).reshape(-1, *part.points.shape[1:])
        moved = jacobian_products(part, way, asked, layers, at_once)
        for name, products in clipped(moved, layers, clips).items():
            sums[name] = sums.get(name, 0) + prior.kept(products).sum(dim=0)
        advance(len(part.records))
    return {name: total.cpu() / len(batch.records) for name, total in sums.items()}


def _expect_own_gradients(view: FunctionalModel, inputs: Tensor, labels: Tensor) -> None:
    view.check(inputs, labels)
    reason = view.coupling(inputs, labels)
    if reason:
        raise NotApplicable(f"records have no gradients of their own: {reason}{view.remedy}")
    if view.stochastic(inputs):
        raise NotApplicable(
            "the model draws random numbers (dropout), so that a record has no one gradient; use "
            "--mode eval"
        )


def _chunk(batch: Batch, layers: Sequence[Layer], prior: GaussianPrior, memory: int) -> int:
    """Count the records that are taken at once: as many as fit."""
    trace = batch.trace
    moving = sum(math.prod(site.shape) + math.prod(site.seen) for site in trace.sites)
    moving += sum(trace.view.parameters[name].numel() for name in trace.whole)
    largest = max(layer.parameters for layer in layers)
    return max(1, memory // (_ELEMENT * len(prior.counts) * (_COPIES * moving + 4 * largest)))
