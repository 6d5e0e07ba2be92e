"""The gradient of one record's loss, taken apart at the places where parameters are used."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gradaudit.errors import AuditError
from gradaudit.gradients.capture import Capture, Site
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.operations import Operation, Uses

_GUARD_RECORDS = 2
_GUARD_TOLERANCE = 1e-7
_GUARD_ROUNDINGS = 1e3
"""Roundings of the model's precision that sums over many uses and positions may hold."""


class Gradients(NamedTuple):
    """The gradient of one record's loss, or that of many with leading dimensions.

    δ at every site, what came in at the sites where that is real-valued, by the site's index, and
    gradients of the parameters that are not taken apart, by name.
    """

    deltas: tuple[Tensor, ...]
    seen: dict[int, Tensor]
    whole: dict[str, Tensor]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of every kind as one tuple."""
        return (*self.deltas, *self.seen.values(), *self.whole.values())


@dataclass(frozen=True)
class Trace:
    """A model's uses of its parameters, and its loss as a function of what can be varied.

    A record's loss is a function of a *point*, which is the record itself, or, where numbers of it
    are looked up in embeddings, what those give out may be displaced by: the record's real numbers
    and then the displacements. ``sites`` are the places where parameters are taken apart, in order,
    ``uses`` by parameter its sites and its operation there, and ``whole`` the parameters that are
    differentiated by directly. ``embedded`` are the embeddings that look up something of the
    record, by their number in the forward pass, with the shape of what they give out.
    """

    view: FunctionalModel
    sites: tuple[Site, ...]
    uses: dict[str, tuple[tuple[int, Operation], ...]]
    whole: tuple[str, ...]
    embedded: Mapping[int, tuple[int, ...]]

    @classmethod
    def of(
        cls,
        view: FunctionalModel,
        names: Sequence[str],
        records: Tensor,
        targets: Tensor,
    ) -> Self:
        """Find the uses of the named parameters, and which of them the uses explain.

        A parameter's gradient must equal the sum over its uses, G = Σ Δ Aᵀ, on the first records;
        one for which it does not is taken whole. So is everything if some record meets other layers
        than the first. An embedding looks up something of the record where that is not the same for
        all records; of a single record, the first one does. Records are as ``view.cast`` gives
        them, targets those of the loss. Uses of several kinds, as of an embedding that is the last
        layer's weight too, explain no parameter: their factors do not lie side by side.

        Raises:
            AuditError: the loss has no gradient.
        """
        watched = [_watched(view, names, record) for record in records]
        trace = cls(view, (), {}, (), _looking_up(watched, records))._applied(watched[0], names)
        explained = set(trace.uses)
        for record, target in zip(records[:_GUARD_RECORDS], targets, strict=False):
            explained &= trace._explained(record, target)
        explained = {name for name in explained if _of_one_kind(trace.uses[name])}
        if any(tuple(other.sites) != trace.sites for other in watched[1:]):
            explained = set()
        if explained == set(names):
            return trace
        return trace._applied(_watched(view, explained, records[0]), names)

    def point(self, records: Tensor) -> Tensor:
        """The points of records, (records, …)."""
        if not self.embedded:
            return records
        moving = records.flatten(1)[:, : None if records.is_floating_point() else 0]
        still = moving.new_zeros(len(records), sum(map(prod, self.embedded.values())))
        return torch.cat([moving, still.to(moving)], dim=1).to(self.view.device, self.view.dtype)

    def seeded(self, index: int) -> Self:
        """The trace with random numbers of its own for the record of this index."""
        return replace(self, view=replace(self.view, seed=self.view.seed + index))

    def gradients(self, point: Tensor, target: Tensor, record: Tensor) -> Gradients:
        """Compute one record's gradients by ``torch.func``.

        Point and target come without the records' dimension; the record is used where it is made of
        tokens.
        """

        def loss(
            perturbations: tuple[Tensor, ...], whole: dict[str, Tensor]
        ) -> tuple[Tensor, dict[int, Tensor]]:
            outputs, capture = self._run(point, record, whole, perturbations)
            losses = self.view.loss.per_record(outputs, target.unsqueeze(0))
            return losses[0], _real(capture.seen)

        whole = {name: self.view.parameters[name] for name in self.whole}
        gradients = torch.func.grad(loss, argnums=(0, 1), has_aux=True)
        (deltas, of_whole), seen = gradients(self.zeros(point), whole)
        return Gradients(deltas, seen, of_whole)

    def responses(
        self, point: Tensor, record: Tensor, perturbations: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Compute one record's outputs, as a batch of one, and the sites' inputs."""
        outputs, capture = self._run(point, record, {}, perturbations)
        return outputs, _real(capture.seen)

    def connected(self, point: Tensor, target: Tensor, record: Tensor) -> Gradients:
        """Compute one record's gradients by autograd, differentiable again by point and target."""
        zeros = tuple(zero.requires_grad_() for zero in self.zeros(point))
        whole = {name: _leaf(self.view.parameters[name]) for name in self.whole}
        leaves = [*zeros, *whole.values()]
        with torch.enable_grad():
            outputs, capture = self._run(point, record, whole, zeros)
            loss = self.view.loss.per_record(outputs, target.unsqueeze(0))[0]
            slopes = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
        of_whole = dict(zip(whole, slopes[len(zeros) :], strict=True))
        return Gradients(tuple(slopes[: len(zeros)]), _real(capture.seen), of_whole)

    def tokens(self, record: Tensor) -> dict[int, Tensor]:
        """Inputs of the sites that take tokens, by the site's index."""
        with torch.no_grad():
            _, capture = self._run(self.point(record.unsqueeze(0))[0], record, {}, None)
        return {k: x for k, x in enumerate(capture.seen) if not x.is_floating_point()}

    def zeros(self, like: Tensor) -> tuple[Tensor, ...]:
        """Make one zero perturbation for each site."""
        dtype, device = self.view.dtype, like.device
        return tuple(torch.zeros(site.shape, dtype=dtype, device=device) for site in self.sites)

    def _run(
        self,
        point: Tensor,
        record: Tensor,
        parameters: Mapping[str, Tensor],
        perturbations: Sequence[Tensor] | None,
    ) -> tuple[Tensor, Capture]:
        watched = {name: parameters.get(name, self.view.parameters[name]) for name in self.uses}
        moved, displacements = self._parts(point, record)
        capture = Capture(watched, perturbations, displacements)
        with capture:
            outputs = self.view.outputs(parameters, moved.unsqueeze(0))
        if tuple(capture.sites) != self.sites:
            raise AuditError("the model applies other layers to some records than to others")
        return outputs, capture

    def _parts(self, point: Tensor, record: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """The record at a point, and the displacements there, by the embedding's number."""
        if not self.embedded:
            return point, {}
        sizes = [prod(shape) for shape in self.embedded.values()]
        moved, *parts = torch.split(point, [len(point) - sum(sizes), *sizes])
        displaced = zip(self.embedded.items(), parts, strict=True)
        displacements = {number: part.reshape(shape) for (number, shape), part in displaced}
        return moved.reshape(record.shape) if len(moved) else record, displacements

    def _applied(self, capture: Capture, names: Iterable[str]) -> Self:
        """The trace of the sites that were met, with the uses of parameters there."""
        uses: dict[str, tuple[tuple[int, Operation], ...]] = {}
        for index, site in enumerate(capture.sites):
            for name, operation in site.uses:
                uses[name] = (*uses.get(name, ()), (index, operation))
        whole = tuple(name for name in names if name not in uses)
        return replace(self, sites=tuple(capture.sites), uses=uses, whole=whole)

    def _explained(self, record: Tensor, target: Tensor) -> set[str]:
        """The parameters whose gradient is the sum over their uses."""
        if not self.uses:
            return set()
        leaves = {name: _leaf(parameter) for name, parameter in self.view.parameters.items()}
        zeros = tuple(zero.requires_grad_() for zero in self.zeros(record))
        with torch.enable_grad():
            try:
                outputs, capture = self._run(self.point(record[None])[0], record, leaves, zeros)
            except AuditError:
                return set()
            loss = self.view.loss.per_record(outputs, target.unsqueeze(0))[0]
            if not loss.requires_grad:
                raise AuditError("the loss cannot be differentiated by the model's parameters")
            watched = [leaves[name] for name in self.uses]
            gradients = torch.autograd.grad(loss, [*zeros, *watched], materialize_grads=True)
        deltas = gradients[: len(zeros)]
        wholes = dict(zip(self.uses, gradients[len(zeros) :], strict=True))
        return {
            name
            for name, uses in self.uses.items()
            if _equals_the_sum(wholes[name], uses, deltas, capture.seen)
        }


def _of_one_kind(uses: Uses) -> bool:
    return len({(type(operation), operation.block) for _, operation in uses}) == 1


def _watched(view: FunctionalModel, names: Iterable[str], record: Tensor) -> Capture:
    capture = Capture({name: view.parameters[name] for name in names})
    with capture, torch.no_grad():
        view.outputs({}, record.unsqueeze(0))
    return capture


def looks_up(view: FunctionalModel, record: Tensor) -> bool:
    """Whether the model looks up numbers of a record in an embedding: found by trying others."""
    first = _watched(view, (), record)
    if not first.looked_up:
        return False
    for other in (torch.zeros_like(record), torch.ones_like(record)):
        try:
            again = _watched(view, (), other)
        except Exception:  # as for a code that is in no table
            return True
        if not all(map(torch.equal, first.looked_up, again.looked_up)):
            return True
    return False


def _looking_up(watched: Sequence[Capture], records: Tensor) -> dict[int, tuple[int, ...]]:
    """The embeddings that look up something of the record, with the shapes that they give out."""
    first, *others = watched
    alike = [other for other in others if other.embedded == first.embedded]
    shapes = dict(enumerate(first.embedded))
    varying = {
        number: shape
        for number, shape in shapes.items()
        if any(not torch.equal(first.looked_up[number], a.looked_up[number]) for a in alike)
    }
    if varying or records.is_floating_point():
        return varying
    return dict(list(shapes.items())[:1])


def _equals_the_sum(
    whole: Tensor, uses: Uses, deltas: Sequence[Tensor], seen: Sequence[Tensor]
) -> bool:
    """Whether it does, up to the rounding of the terms, which may cancel (biases of keys do)."""
    total, terms = torch.zeros_like(whole), whole.new_zeros(())
    for site, operation in uses:
        left, came_in = operation.left(deltas[site][None]).detach(), seen[site][None].detach()
        right = operation.right(came_in).to(left)
        total += operation.weight(left @ right.mT, came_in).reshape(whole.shape)
        terms = terms + (left.abs() @ right.abs().mT).max()
    roundings = _GUARD_ROUNDINGS * torch.finfo(whole.dtype).eps
    tolerance = _GUARD_TOLERANCE * whole.abs().max() + roundings * terms
    return bool((total - whole).abs().max() <= tolerance)


def _real(seen: Sequence[Tensor]) -> dict[int, Tensor]:
    return {index: came_in for index, came_in in enumerate(seen) if came_in.is_floating_point()}


def _leaf(parameter: Tensor) -> Tensor:
    return parameter.clone().requires_grad_()
