"""Four ways to move a record's gradients in many directions, the fastest that a model allows.

- ``Mapped``: forward mode, all records and directions at once (``vmap`` of ``vmap`` of ``jvp``).
- ``Looped``: forward mode, one record after the other (models that ``vmap`` cannot map over
  records: recurrent ones, control flow by values; and dropout, whose masks each record draws).
- ``Doubled``: differentiating twice backwards, one record and direction after the other (models
  with operations that have no forward mode or that ``torch.func`` does not take).
- ``Differenced``: central differences, where none of these gives the derivative.

The tangents of a way are compared with central differences: what a model computes from
``detach`` or under ``no_grad``, or with operations that have one derivative alone, drops out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from gradaudit.errors import AuditError, one_line
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.trace import Gradients, Trace

Variable = Literal["point", "target"]
Record = tuple[Tensor, Tensor, Tensor]
"""A point, a target and the record."""
_STEPS = {torch.float64: (1e-8, 1e-5, 1e-3), torch.float32: (1e-3, 1e-2)}
"""Steps, in units of a record, of which the smallest meet no kink and the largest no rounding."""
_TOLERANCES = {torch.float64: 1e-3, torch.float32: 3e-2}
_ROUNDINGS = 1e2
_JITTER = 1e-2
"""Distance from a record, which may lie on a kink (zeros, ties), at which slopes are compared."""
_COMPARED = 3
_SIGHT = 4
"""A difference over so much less of a step differs where a gradient jumps within it."""
_CUT = "cuts the derivative by the {} (detach or no_grad?)"
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

    def in_double_precision(self) -> Self:
        """The batch of the same model in float64."""
        view = self.trace.view.in_precision(torch.float64)
        return replace(
            self,
            trace=replace(self.trace, view=view),
            records=view.cast(self.records),
            points=view.cast(self.points),
            targets=view.cast(self.targets),
        )

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


@dataclass(frozen=True)
class Differenced:
    """Central differences of the gradients of another way, ``why`` that one is not enough.

    No number stands where a gradient jumps within the step.
    """

    way: Mapped | Looped | Doubled
    why: str

    @property
    def title(self) -> str:
        """Returns the name of the method, with the reason for it."""
        return f"central differences of gradients: {self.why}"

    def gradients(self, batch: Batch) -> Gradients:
        """Each record's gradients."""
        return self.way.gradients(batch)

    def moved(self, batch: Batch, directions: Tensor, by: Variable) -> Gradients:
        """Compute the tangents of the gradients."""
        dtype = batch.trace.view.dtype
        step, tolerance = torch.finfo(dtype).eps ** 0.4, _TOLERANCES[dtype]

        def settled(wide: Tensor, narrow: Tensor) -> Tensor:
            apart = (wide - narrow).flatten(1).abs().amax(1)
            jumps = apart > tolerance * narrow.flatten(1).abs().amax(1)
            return torch.where(jumps.view(-1, *[1] * (narrow.dim() - 1)), torch.nan, narrow)

        tangents = []
        for direction in directions:
            wide, narrow = (
                _difference(self, batch, direction, each, by) for each in (step, step / _SIGHT)
            )
            tangents.append(tree_map(settled, wide, narrow))
        moved: Gradients = tree_map(lambda *leaves: torch.stack(leaves, dim=1), *tangents)
        return moved


Differentiation = Mapped | Looped | Doubled | Differenced


def fastest(batch: Batch, by: Variable) -> Differentiation:
    """The first way that works for this model, tried on two records and a direction.

    Raises:
        AuditError: there is no gradient.
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
            return way
    try:
        Doubled().gradients(batch)
    except Exception as error:
        raise AuditError(
            f"the model's gradients cannot be differentiated by its {_MEANING[by]}: {error}"
        ) from error
    fault = one_line(reason)
    return Differenced(Doubled(), f"the loss cannot be differentiated twice (torch: {fault})")


def checked(way: Differentiation, batch: Batch, by: Variable) -> Differentiation:
    """The way, or differences where its tangents are not those of the gradients.

    A direction of a few records is looked at, in double precision where the model can be run in it,
    at points near by. Records whose gradients stand still say nothing; it takes all others
    to disagree at every step, as one may lie by a kink.
    """
    batch = batch.part(slice(_COMPARED))
    try:
        wrong = _is_cut(way, batch.in_double_precision(), by)
    except Exception:  # a model that computes in its own precision alone
        wrong = _is_cut(way, batch, by)
    if not wrong or isinstance(way, Differenced):
        return way
    return Differenced(way, f"the model or its loss {_CUT.format(_MEANING[by])}")


def cut_of_input(view: FunctionalModel, inputs: Tensor, labels: Tensor) -> str | None:
    """Why derivatives of gradients by the input differ from differences; None where they agree.

    For what follows these derivatives through the whole model, as attacks that match gradients do:
    a weighted sum of all gradients of a few records is differentiated in one direction.

    Args:
        view: a functional copy of the model.
        inputs: (records, …), of which the first few are looked at.
        labels: of these records.
    """
    if not inputs.is_floating_point():
        return None
    double = view.in_double_precision(inputs)
    records, targets = double.cast(inputs[:_COMPARED]), double.cast(labels[:_COMPARED])
    found = set[bool | None]()
    try:
        for seed in range(_COMPARED):
            found.add(_agrees(double, records, targets, seed))
            if True in found:
                return None
    except RuntimeError as error:
        return f"the loss cannot be differentiated twice (torch: {one_line(error)})"
    return f"the model or its loss {_CUT.format('input')}" if False in found else None


def _agrees(view: FunctionalModel, records: Tensor, targets: Tensor, seed: int) -> bool | None:
    """Whether a derivative equals a difference at some step; None where none shows."""
    generator = torch.Generator().manual_seed(seed)

    def draw(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

    size = torch.where(records == 0, 1, records.abs())
    start, direction = records + _JITTER * size * draw(records), size * draw(records)
    weights = [draw(parameter) for parameter in view.parameters.values()]

    def weighted_sum(x: Tensor, *, connected: bool) -> Tensor:
        moving = {name: p.clone().requires_grad_() for name, p in view.parameters.items()}
        loss, leaves = view.batch_loss(moving, x, targets), list(moving.values())
        gradients = torch.autograd.grad(
            loss, leaves, create_graph=connected, materialize_grads=True
        )
        return torch.stack([(g * w).sum() for g, w in zip(gradients, weights, strict=True)]).sum()

    point, slope = start.clone().requires_grad_(), start.new_zeros(())
    total = weighted_sum(point, connected=True)
    if total.requires_grad:
        (tangent,) = torch.autograd.grad(total, point, materialize_grads=True)
        slope = (tangent * direction).sum()
    agree = None
    for step in _STEPS[view.dtype]:
        ahead, behind = (
            weighted_sum(start + s * direction, connected=False) for s in (step, -step)
        )
        difference = (ahead - behind) / (2 * step)
        rounding = _ROUNDINGS * torch.finfo(view.dtype).eps / step * total.detach().abs()
        largest = max(difference.abs(), slope.abs())
        if largest > rounding:
            apart = (difference - slope).abs()
            agree = bool(apart <= _TOLERANCES[view.dtype] * largest + rounding)
            if agree:
                break
    return agree


def _is_cut(way: Differentiation, batch: Batch, by: Variable) -> bool:
    agree: set[Any] = set()
    differ: set[Any] = set()
    for index in range(len(batch.records)):
        every = _verdicts(way, batch.part(slice(index, index + 1)), by)
        agree |= {part for part, verdicts in every.items() if any(verdicts)}
        differ |= {part for part, verdicts in every.items() if len(verdicts) > 1}
        if every.keys() <= agree:
            return False
    return bool(differ - agree)


def _verdicts(way: Differentiation, one: Batch, by: Variable) -> dict[Any, list[bool]]:
    """Whether tangents of one record equal differences, by part, for every step that shows it.

    Further steps are not looked at once each part's tangent equals a difference.
    """
    variable, dtype = one.variable(by), one.trace.view.dtype
    size = torch.where(variable == 0, 1, variable.abs())
    generator = torch.Generator().manual_seed(one.indices.start)
    away, direction = (
        torch.randn(variable.shape, generator=generator, dtype=torch.float64).to(variable) * size
        for _ in range(2)
    )
    one = one.moved(by, _JITTER * away)
    gradients, tangents = way.gradients(one), _parts(way.moved(one, direction, by))
    lengths = {part: gradient.abs().max() for part, gradient in _parts(gradients).items()}
    still = {("seen", site) for site, delta in enumerate(gradients.deltas) if not delta.any()}
    verdicts: dict[Any, list[bool]] = {part: [] for part in tangents}
    for step in _STEPS[dtype]:
        differences = _parts(_difference(way, one, direction[0], step, by))
        for part in verdicts.keys() - still:
            difference, tangent = differences[part], tangents[part][:, 0]
            largest = max(difference.abs().max(), tangent.abs().max())
            rounding = _ROUNDINGS * torch.finfo(dtype).eps / step * lengths[part]
            if largest > rounding:
                apart = (difference - tangent).abs().max()
                verdicts[part].append(bool(apart <= _TOLERANCES[dtype] * largest + rounding))
        if all(any(of_part) for of_part in verdicts.values()):
            break
    return verdicts


def _parts(gradients: Gradients) -> dict[Any, Tensor]:
    """Tensors that are not empty, by site or name."""
    parts: dict[Any, Tensor] = {("seen", site): x for site, x in gradients.seen.items()}
    parts |= dict(enumerate(gradients.deltas)) | gradients.whole
    return {part: tensor for part, tensor in parts.items() if tensor.numel()}


def _difference(
    way: Differentiation, batch: Batch, direction: Tensor, step: float, by: Variable
) -> Gradients:
    ahead, behind = (way.gradients(batch.moved(by, s * direction)) for s in (step, -step))
    slope: Gradients = tree_map(lambda a, b: (a - b) / (2 * step), ahead, behind)
    return slope


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
