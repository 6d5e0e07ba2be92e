"""The gradient of one record's loss, taken apart at the places where parameters are used."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
"""Of the model's precision, where that is coarser: sums over many uses and positions."""


class Gradients(NamedTuple):
    """The gradient of one record's loss, or that of many with leading dimensions.

    δ at every site, what came in at the sites where that is real-valued, by the site's index, and
    gradients of the parameters that are not taken apart, by name.
    """

    deltas: tuple[Tensor, ...]
    seen: dict[int, Tensor]
    whole: dict[str, Tensor]


@dataclass(frozen=True)
class Trace:
    """Where a model's parameters are used, and its loss as a function of what can be varied.

    A record's loss is a function of a *point*, which is the record itself, or, where that is made
    of tokens, a displacement of the first embedding's output. ``sites`` are the places where
    parameters are taken apart, in order, ``uses`` by parameter its sites and its operation there,
    and ``whole`` the parameters that are differentiated by directly. ``embedded`` is the shape of
    the first embedding's output where records are tokens, else None.
    """

    view: FunctionalModel
    sites: tuple[Site, ...]
    uses: dict[str, tuple[tuple[int, Operation], ...]]
    whole: tuple[str, ...]
    embedded: tuple[int, ...] | None

    @classmethod
    def of(
        cls, view: FunctionalModel, names: Sequence[str], records: Tensor, targets: Tensor
    ) -> Self:
        """Find the uses of the named parameters, and which of them the uses explain.

        A parameter's gradient must equal the sum over its uses, G = Σ Δ Aᵀ, on the first records;
        one for which it does not is taken whole. So is everything if some record meets other layers
        than the first. Records are as ``view.cast`` gives them, targets those of the loss.

        Raises:
            AuditError: the loss has no gradient.
        """
        trace = cls(view, (), {}, (), None)._watching(names, records[0])
        explained = set(trace.uses)
        for record, target in zip(records[:_GUARD_RECORDS], targets, strict=False):
            explained &= trace._explained(record, target)
        if any(trace._watching(names, record).sites != trace.sites for record in records[1:]):
            explained = set()
        return trace if explained == set(names) else trace._watching(explained, records[0], names)

    def point(self, records: Tensor) -> Tensor:
        """The points of records, (records, …)."""
        if self.embedded is None:
            return records
        return torch.zeros(
            len(records), *self.embedded, dtype=self.view.dtype, device=self.view.device
        )

    def seeded(self, index: int) -> Self:
        """The trace with random numbers of its own for the record of this index."""
        return replace(self, view=replace(self.view, seed=self.view.seed + index))

    def gradients(self, point: Tensor, target: Tensor, record: Tensor) -> Gradients:
        """One record's gradients, by ``torch.func``.

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
        """One record's outputs, for a batch of one, and what came in at the sites."""
        outputs, capture = self._run(point, record, {}, perturbations)
        return outputs, _real(capture.seen)

    def connected(self, point: Tensor, target: Tensor, record: Tensor) -> Gradients:
        """One record's gradients by plain autograd, differentiable again by point and target."""
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
        """What came in at the sites where that is made of tokens, by the site's index."""
        with torch.no_grad():
            _, capture = self._run(self.point(record.unsqueeze(0))[0], record, {}, None)
        return {k: x for k, x in enumerate(capture.seen) if not x.is_floating_point()}

    def zeros(self, like: Tensor) -> tuple[Tensor, ...]:
        """A perturbation a site."""
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
        tokens = self.embedded is not None
        capture = Capture(watched, perturbations, point if tokens else None)
        with capture:
            outputs = self.view.outputs(parameters, (record if tokens else point).unsqueeze(0))
        if tuple(capture.sites) != self.sites:
            raise AuditError("the model applies other layers to some records than to others")
        return outputs, capture

    def _watching(
        self, names: Iterable[str], record: Tensor, every: Sequence[str] | None = None
    ) -> Self:
        """The trace that takes these parameters apart, if all of a parameter's uses are alike."""
        watched = {name: self.view.parameters[name] for name in names}
        capture = Capture(watched)
        with capture, torch.no_grad():
            self.view.outputs({}, record.unsqueeze(0))
        uses: dict[str, tuple[tuple[int, Operation], ...]] = {}
        for index, site in enumerate(capture.sites):
            for name, operation in site.uses:
                uses[name] = (*uses.get(name, ()), (index, operation))
        whole = tuple(name for name in every or names if name not in uses)
        embedded = None if record.is_floating_point() else capture.embedded
        return type(self)(self.view, tuple(capture.sites), uses, whole, embedded)

    def _explained(self, record: Tensor, target: Tensor) -> set[str]:
        """The parameters whose gradient is the sum over their uses."""
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
            if len({(type(operation), operation.block) for _, operation in uses}) == 1
            and _equals_the_sum(wholes[name], uses, deltas, capture.seen)
        }


def _equals_the_sum(
    whole: Tensor, uses: Uses, deltas: Sequence[Tensor], seen: Sequence[Tensor]
) -> bool:
    total = torch.zeros_like(whole)
    for site, operation in uses:
        left, came_in = operation.left(deltas[site][None]), seen[site][None]
        block = left @ operation.right(came_in).to(left).mT
        total += operation.weight(block.detach(), came_in).reshape(whole.shape)
    size = whole.abs().max()
    tolerance = max(_GUARD_TOLERANCE, _GUARD_ROUNDINGS * torch.finfo(whole.dtype).eps)
    return bool((total - whole).abs().max() <= tolerance * size)


def _real(seen: Sequence[Tensor]) -> dict[int, Tensor]:
    return {index: came_in for index, came_in in enumerate(seen) if came_in.is_floating_point()}


def _leaf(parameter: Tensor) -> Tensor:
    return parameter.clone().requires_grad_()
