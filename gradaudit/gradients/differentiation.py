"""Three ways to move a record's gradients in many directions, the fastest that a model allows.

- ``Mapped``: forward mode, all records and directions at once (``vmap`` of ``vmap`` of ``jvp``).
- ``Looped``: forward mode, one record after the other (models that ``vmap`` cannot map over
  records: recurrent ones, control flow by values; and dropout, whose masks each record draws).
- ``Doubled``: differentiating twice backwards, one record and direction after the other (models
  with operations that have no forward mode or that ``torch.func`` does not take).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from gradaudit.errors import AuditError
from gradaudit.gradients.trace import Gradients, Trace
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import Loss

Variable = Literal["point", "target"]
Record = tuple[Tensor, Tensor, Tensor]
"""A point, a target and the record."""
_STEP = 1e-6
_DIFFERENCE_TOLERANCE = 1e-3
_SECOND = re.compile(r"[Dd]erivative for|differentiat|double backward|does not require grad")
_MEANING = {"point": "input", "target": "labels"}


@dataclass(frozen=True)
class Batch:
    """Some records, ready to be differentiated; each is a batch of its own to the model.

    Records, points (see ``Trace``) and targets of the loss are (records, …); ``indices`` say which
    records these are, for the random numbers of each.
    """

    trace: Trace
    records: Tensor
    points: Tensor
    targets: Tensor
    indices: range

    def part(self, at: slice) -> Self:
        """The records at these positions of this batch.

        They are copied: next to a point that begins inside another tensor's memory, forward mode
        would copy each direction for every record.
        """
        parts = {name: getattr(self, name)[at].clone() for name in ("records", "points", "targets")}
        return replace(self, **parts, indices=self.indices[at])

    def moved(self, name: Variable, step: Tensor) -> Self:
        """The batch with another point or target of the same records."""
        if name == "point":
            return replace(self, points=self.points + step)
        return replace(self, targets=self.targets + step)

    def variable(self, name: Variable) -> Tensor:
        """Return the differentiated variable: the points or the targets."""
        return self.points if name == "point" else self.targets


class Mapped:
    """Forward mode, mapped over records and directions."""

    title = "forward mode"

    def gradients(self, batch: Batch) -> Gradients:
        """Each record's gradients."""
        every = torch.func.vmap(batch.trace.gradients)
        gradients: Gradients = every(batch.points, batch.targets, batch.records)
        return gradients

    def moved(self, batch: Batch, directions: Tensor, by: Variable) -> Gradients:
        """The gradients' tangents. Nothing is computed twice that does not depend on the record.

        By a target in which the loss is linear they are the gradients for the direction itself,
        of all pairs in one ``vmap``: nested, PReLU mistakes directions for records (torch 2.13).
        """
        if by == "target" and batch.trace.view.loss.linear:
            pairs = len(batch.points), len(directions)
            points, records = (
                each.repeat_interleave(pairs[1], 0) for each in (batch.points, batch.records)
            )
            targets = directions.repeat(pairs[0], *(1 for _ in directions.shape[1:]))
            gradients: Gradients = torch.func.vmap(batch.trace.gradients)(points, targets, records)
            apart: Gradients = tree_map(lambda each: each.unflatten(0, pairs), gradients)
            return apart._replace(seen={})
        one = _forward(batch.trace, by)
        several = torch.func.vmap(one, in_dims=(None, None, None, 0))
        every = torch.func.vmap(several, in_dims=(0, 0, 0, None))
        tangents: Gradients = every(batch.points, batch.targets, batch.records, directions)
        return tangents


class Looped:
    """Forward mode, mapped over directions only."""

    title = "forward mode, record by record"

    def gradients(self, batch: Batch) -> Gradients:
        """Each record's gradients."""
        return _stacked([trace.gradients(*record) for trace, record in _one_by_one(batch)])

    def moved(self, batch: Batch, directions: Tensor, by: Variable) -> Gradients:
        """The gradients' tangents; a record has the same random numbers in every direction."""
        tangents = []
        for trace, record in _one_by_one(batch):
            one = _forward(trace, by)
            several = torch.func.vmap(one, in_dims=(None, None, None, 0), randomness="same")
            tangents.append(several(*record, directions))
        return _stacked(tangents)


class Doubled:
    """Backwards twice: with Jᵀu linear in u, its derivative by u in direction v is Jv."""

    title = "double backward, record by record"

    def gradients(self, batch: Batch) -> Gradients:
        """Each record's gradients."""
        gradients = (trace.connected(*record) for trace, record in _one_by_one(batch))
        return _stacked([tree_map(torch.detach, of_record) for of_record in gradients])

    def moved(self, batch: Batch, directions: Tensor, by: Variable) -> Gradients:
        """Compute the tangents of the gradients."""
        return _stacked([_doubled(*one, directions, by) for one in _one_by_one(batch)])


Differentiation = Mapped | Looped | Doubled


def fastest(batch: Batch, by: Variable) -> Differentiation:
    """The first way that works for this model, tried on two records and a direction.

    Raises:
        AuditError: none does; the message is the last one's.
    """
    batch = batch.part(slice(2))
    variable = batch.variable(by)
    directions = variable.new_zeros(1, *variable.shape[1:])
    for way in (Mapped(), Looped(), Doubled()):
        try:
            way.gradients(batch)
            way.moved(batch, directions, by)
        except Exception as error:
            reason = error
        else:
            if isinstance(way, Doubled):
                _compare_with_differences(way, batch.part(slice(1)), by)
            return way
    fault = str(reason)
    raise AuditError(
        f"the model's gradients cannot be differentiated by its {_MEANING[by]}: {fault}"
        f"{_remedy(batch.trace.view.loss) if _SECOND.search(fault) else ''}"
    ) from reason


def _remedy(loss: Loss) -> str:
    """The remedy for an operation of model or loss that has no second derivative."""
    where = f"the model or of --loss {loss.name}" if isinstance(loss, CustomLoss) else "the model"
    return (
        f"; write this operation of {where} with ones that can be differentiated twice (elementary "
        "ones can; a torch.autograd.Function needs a differentiable backward)"
    )


def _compare_with_differences(way: Differentiation, batch: Batch, by: Variable) -> None:
    """Operations marked as differentiable once drop out of a second backward pass unnoticed.

    Raises:
        AuditError: a tangent is not what differences of gradients say.
    """
    variable = batch.variable(by)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(variable.shape, generator=generator, dtype=torch.float64).to(variable)
    ahead = way.gradients(batch.moved(by, _STEP * direction))
    behind = way.gradients(batch.moved(by, -_STEP * direction))
    moved = way.moved(batch, direction, by)
    for plus, minus, tangent in zip(*map(tree_leaves, (ahead, behind, moved)), strict=True):
        difference = (plus - minus) / (2 * _STEP)
        size = max(difference.abs().max(), tangent.abs().max())
        if (difference - tangent[:, 0]).abs().max() > _DIFFERENCE_TOLERANCE * size:
            raise AuditError(
                f"the model's gradients cannot be differentiated by its {_MEANING[by]}: one of "
                f"its operations can be differentiated only once{_remedy(batch.trace.view.loss)}"
            )


def _forward(trace: Trace, by: Variable) -> Callable[..., Gradients]:
    def tangent(point: Tensor, target: Tensor, record: Tensor, direction: Tensor) -> Gradients:
        def gradients(moving: Tensor) -> Gradients:
            if by == "point":
                return trace.gradients(moving, target, record)
            return trace.gradients(point, moving, record)

        at = point if by == "point" else target
        moved: Gradients = torch.func.jvp(gradients, (at,), (direction,))[1]
        return moved

    return tangent


def _doubled(trace: Trace, record: Record, directions: Tensor, by: Variable) -> Gradients:
    point, target, data = record
    moving = (point if by == "point" else target).clone().requires_grad_()
    gradients = trace.connected(*((moving, target) if by == "point" else (point, moving)), data)
    leaves, structure = tree_flatten(gradients)
    weights = [torch.zeros_like(leaf, requires_grad=True) for leaf in leaves]
    live = [k for k, leaf in enumerate(leaves) if leaf.requires_grad]
    outputs, along = ([side[k] for k in live] for side in (leaves, weights))
    (pulled,) = torch.autograd.grad(
        outputs, moving, along, create_graph=True, materialize_grads=True
    )
    tangents = [_pushed(pulled, weights, direction) for direction in directions]
    together = [torch.stack(of_leaf) for of_leaf in zip(*tangents, strict=True)]
    moved: Gradients = tree_unflatten(together, structure)
    return moved


def _pushed(pulled: Tensor, weights: list[Tensor], direction: Tensor) -> list[Tensor]:
    """The derivative of Jᵀu, which is linear in u, by u in a direction."""
    if not pulled.requires_grad:
        return [torch.zeros_like(weight) for weight in weights]
    return list(
        torch.autograd.grad(pulled, weights, direction, retain_graph=True, materialize_grads=True)
    )


def _one_by_one(batch: Batch) -> list[tuple[Trace, Record]]:
    records = zip(batch.points, batch.targets, batch.records, strict=True)
    traces = map(batch.trace.seeded, batch.indices)
    return list(zip(traces, records, strict=True))


def _stacked(parts: Sequence[Gradients]) -> Gradients:
    stacked: Gradients = tree_map(lambda *leaves: torch.stack(leaves), *parts)
    return stacked


def at_records(tree: Any, at: slice) -> Any:
    """Take the records at these positions from nested tensors (records, …)."""
    return tree_map(lambda tensor: tensor[at], tree)
