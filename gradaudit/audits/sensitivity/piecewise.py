"""Tangents of the gradients of piecewise linear networks (ReLU, max pooling, frozen batch norm).

Around a record such a network is linear, so δ at a site is linear in the residual r = ∂ℓ/∂z, with
a constant matrix: Δ = Σ_k r_k Δ_k, where Δ_k are the gradients of output k. It moves only as the
residual does: Δ̇ = Σ_k ṙ_k Δ_k and Δ̇ Aᵀ = Σ_k ṙ_k (Δ_k Aᵀ), which takes no backward pass a
direction.

Whether a network is of this kind at a record is not read off its modules but tested: the
difference to the general Δ̇ is linear in the direction, so if it is zero in a Gaussian direction it
is zero in all, with probability one. For the same reason an element that stands still in that
direction stands still in all.

Such a network's response in every unit direction is a Jacobian of what comes in at the sites and of
the outputs, by the input. ``Tabulated`` holds all its columns: where fewer elements move at the
sites than the input has, they take one backward pass for each of them, instead of a forward one for
each column. And consecutive columns move few positions of a convolution's input, so that Δ Ȧᵀ = (Δ
spread over the positions of the input) · (their tangents) takes few of them.

Exact norms of LeNet take 1.6 times as long by general tangents, and 6.1 times as long without
tables (benchmarks/speed/fast_paths.py, one thread).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from gradaudit.gradients.differentiation import Batch, at_records
from gradaudit.gradients.jacobian_norms import Directions, Norm
from gradaudit.gradients.operations import Convolution
from gradaudit.gradients.sources import (
    FactoredGradients,
    General,
    NormsByParameter,
    Tangents,
    over_uses,
    unstretched,
)

_TOLERANCE = 1e-8
_ROWS = 64

Response = tuple[Tensor, dict[int, Tensor]]
"""Tangents of the outputs, (records, directions, outputs), and of what came in at the sites."""


@dataclass(frozen=True)
class PiecewiseLinear:
    """The source of tangents by the input for piecewise linear networks.

    ``deltas`` are Δ_k at every site, (records, outputs, …), the curvature is ∂r/∂z, (records,
    outputs, outputs), and the response that in the Gaussian direction of the test.
    """

    point: FactoredGradients
    deltas: tuple[Tensor, ...]
    curvature: Tensor
    direction: Tensor
    response: Response

    title: ClassVar[str] = "forward mode of a piecewise linear network"

    @classmethod
    def of(cls, general: General, direction: Tensor) -> PiecewiseLinear | None:
        """Make the source if the network is piecewise linear at every record.

        It is compared with the general source in a Gaussian direction, in the shape of a point.
        """
        batch, directions = general.point.batch, direction.unsqueeze(0)
        response = _responses(batch, directions)
        outputs, deltas = _components(batch)
        source = cls(general.point, deltas, _curvatures(batch, outputs), direction, response)
        mixture = response[0] @ source.curvature
        for components, tangent in zip(
            source.deltas, general.moved(directions).deltas, strict=True
        ):
            linear = torch.einsum("rnk,rk...->rn...", mixture, components)
            apart, size = ((x.flatten(1).abs().amax(1)) for x in (linear - tangent, tangent))
            if (apart > _TOLERANCE * size).any():
                return None
        return source

    def part(self, at: slice) -> PiecewiseLinear:
        """Make the source for the records at these positions."""
        rest = self.deltas, self.curvature, self.response
        deltas, curvature, response = at_records(rest, at)
        return PiecewiseLinear(self.point.part(at), deltas, curvature, self.direction, response)

    def norms(self, directions: Directions, wanted: Collection[Norm]) -> NormsByParameter:
        """Norms of each parameter's Ġ."""
        outputs, seen = _responses(self.point.batch, directions.vectors)
        mixture, seen = outputs @ self.curvature, unstretched(seen)
        for name in self.point.batch.trace.uses:
            yield name, self.of_parameter(name, seen, mixture, wanted).norms(wanted)

    def of_parameter(
        self, name: str, seen: Mapping[int, Tensor], mixture: Tensor, wanted: Collection[Norm]
    ) -> Tangents:
        """Compute one parameter's tangents.

        ``seen`` is as in ``Tangents``; ``mixture`` is ṙ, (records, directions, outputs).
        """
        base, uses = self.point.factors[name], self.point.batch.trace.uses[name]
        if base.formed(wanted):
            return Tangents(base, uses, seen, None, self.product(name, mixture))
        return Tangents(base, uses, seen, self._left(name, mixture))

    @property
    def moving(self) -> dict[int, Tensor]:
        """Return the tangents of the layers' inputs, except where that is the model's input."""
        point = self.direction.flatten()
        return {
            site: came_in
            for site, came_in in self.response[1].items()
            if not (came_in[0].numel() == len(point) and (came_in.flatten(1) == point).all())
        }

    def product(self, name: str, mixture: Tensor) -> Tensor:
        """Compute one parameter's Δ̇ Aᵀ, (records, directions, groups, out, in)."""
        if name not in self._gradients:
            left = self._left(name, mixture)
            return Tangents(self.point.factors[name], (), {}, left).formed().contiguous()
        gradients = self._gradients[name]
        product = mixture @ gradients.flatten(2)
        return product.reshape(*mixture.shape[:2], *gradients.shape[2:])

    def _left(self, name: str, mixture: Tensor) -> Tensor:
        """Δ̇, (records, groups, directions, out, positions)."""
        return torch.einsum("rnk,rgkot->rgnot", mixture, self._lefts[name])

    @cached_property
    def _lefts(self) -> dict[str, Tensor]:
        """Δ_k over all uses, (records, groups, outputs, out, positions), by parameter."""
        return {
            name: over_uses([use.left(self.deltas[site]) for site, use in uses])
            for name, uses in self.point.batch.trace.uses.items()
        }

    @cached_property
    def _gradients(self) -> dict[str, Tensor]:
        """Δ_k Aᵀ, (records, outputs, groups, out, in), by parameter, where they are few."""
        outputs = self.curvature.shape[1]
        return {
            name: Tangents(factors, (), {}, self._lefts[name]).formed().contiguous()
            for name, factors in self.point.factors.items()
            if outputs < factors.left.shape[-1]
        }


def _responses(batch: Batch, directions: Tensor) -> Response:
    """Compute the network's response to directions (directions, …)."""

    def one(point: Tensor, record: Tensor, direction: Tensor) -> Response:
        def function(moving: Tensor) -> Response:
            outputs, seen = batch.trace.responses(moving, record)
            return outputs.flatten(), seen

        response: Response = torch.func.jvp(function, (point,), (direction,))[1]
        return response

    several = torch.func.vmap(one, in_dims=(None, None, 0))
    every = torch.func.vmap(several, in_dims=(0, 0, None))
    response: Response = every(batch.points, batch.records, directions)
    return response


def _components(batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs (records, 1, …) and their gradients at every site, (records, outputs, …)."""

    def one(point: Tensor, record: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        outputs, pull = torch.func.vjp(
            lambda perturbations: batch.trace.responses(point, record, perturbations)[0],
            batch.trace.zeros(point),
        )[:2]
        units = torch.eye(outputs.numel(), dtype=outputs.dtype, device=outputs.device)
        (deltas,) = torch.func.vmap(pull)(units.reshape(-1, *outputs.shape))
        return outputs, tuple(deltas)

    outputs, deltas = torch.func.vmap(one)(batch.points, batch.records)
    return outputs, deltas


def _curvatures(batch: Batch, outputs: Tensor) -> Tensor:
    """The Hessians of the losses by the flattened outputs, (records, outputs, outputs)."""

    def loss(flat: Tensor, target: Tensor) -> Tensor:
        shaped = flat.reshape(outputs.shape[1:])
        return batch.trace.view.loss.per_record(shaped, target.unsqueeze(0))[0]

    hessian = torch.func.hessian(loss)
    hessians: Tensor = torch.func.vmap(hessian)(outputs.flatten(1), batch.targets)
    return hessians


@dataclass(frozen=True)
class Tabulated(PiecewiseLinear):
    """One record of a piecewise linear network, with its response in every unit direction.

    ``outputs`` are tangents of the outputs, (outputs, columns), ``seen`` those of what came in,
    (elements, columns), by site; sites where the input itself comes in are left out.
    """

    outputs: Tensor
    seen: dict[int, Tensor]

    def norms(self, directions: Directions, wanted: Collection[Norm]) -> NormsByParameter:
        """Norms of each parameter's Ġ."""
        if directions.columns is None:
            yield from super().norms(directions, wanted)
            return
        mixture = self.outputs[None, :, directions.columns].mT @ self.curvature
        for name in self.point.batch.trace.uses:
            yield name, self._of_parameter(name, directions, mixture, wanted).norms(wanted)

    def _of_parameter(
        self, name: str, directions: Directions, mixture: Tensor, wanted: Collection[Norm]
    ) -> Tangents:
        uses, base = self.point.batch.trace.uses[name], self.point.factors[name]
        if name in self._spread and base.formed(wanted):
            product = self.product(name, mixture)
            _add_moved(product, self._spread[name], self._rows(uses[0][0], directions))
            return Tangents(base, uses, {}, None, product)
        seen = {}
        for site, _ in uses:
            if self.point.batch.trace.sites[site].tokens:
                continue
            columns = self._rows(site, directions).contiguous().t().contiguous()
            seen[site] = columns.reshape(1, -1, *self.response[1][site].shape[2:])
        return self.of_parameter(name, seen, mixture, wanted)

    def _rows(self, site: int, directions: Directions) -> Tensor:
        """Compute the tangents of a layer's input, (elements, directions)."""
        if site not in self.seen:
            return directions.vectors.flatten(1).t()
        return self.seen[site][:, directions.columns]

    @cached_property
    def _spread(self) -> dict[str, Tensor]:
        """Δ spread over the input's positions, of convolutions that are used once, by parameter."""
        spread = {}
        for name, ((site, use), *others) in self.point.batch.trace.uses.items():
            if isinstance(use, Convolution) and use.shape[0] == 1 and not others:
                space = self.response[1][site].shape[-len(use.kernel) :]
                spread[name] = use.spread(self.point.factors[name].left, space)[0]
        return spread


def tabulated(linear: PiecewiseLinear) -> Tabulated | None:
    """Make the source for one record, with its response tabulated.

    None where the table, by backward passes, is not the response in the direction of the test:
    backwards ``no_grad`` cuts the derivative, forwards it does not.
    """
    batch, (outputs, _) = linear.point.batch, linear.response
    (point,), (record,) = batch.points, batch.records

    def came_in(moving: Tensor, site: int) -> Tensor:
        return batch.trace.responses(moving, record)[1][site]

    def given(moving: Tensor) -> Tensor:
        return batch.trace.responses(moving, record)[0].flatten()

    seen = {
        site: _table(partial(came_in, site=site), point, tangent[0, 0])
        for site, tangent in linear.moving.items()
    }
    table = _table(given, point, torch.ones_like(outputs[0, 0]))
    along = linear.direction.flatten()
    tables = [(table, outputs), *((seen[site], linear.moving[site]) for site in seen)]
    for columns, tangent in tables:
        apart = (columns @ along - tangent.flatten()).abs().max()
        if apart > _TOLERANCE * tangent.abs().max():
            return None
    known = linear.point, linear.deltas, linear.curvature, linear.direction, linear.response
    return Tabulated(*known, table, seen)


def tables_pay(linear: PiecewiseLinear, memory: int) -> bool:
    """Whether a table takes fewer backward passes than there are columns, and fits."""
    columns, tangents = linear.direction.numel(), [x[0] for x in linear.moving.values()]
    rows = linear.response[0].shape[2] + sum(tangent.numel() for tangent in tangents)
    passes = sum(int(tangent.count_nonzero()) for tangent in tangents)
    return passes <= columns and 8 * rows * columns <= memory


def _add_moved(product: Tensor, spread: Tensor, rows: Tensor) -> None:
    """Add Δ Ȧᵀ to the tangents.

    ``product`` is (1, directions, groups, out, channels × taps), ``spread`` is Δ over the input's
    positions, (groups, out, taps, positions), and ``rows`` are tangents of the input, (groups ×
    channels × positions, directions).
    """
    groups, outputs, taps, positions = spread.shape
    blocks = product[0].view(*product.shape[1:4], -1, taps)
    tangents = rows.reshape(groups, -1, positions, rows.shape[1])
    for group, weights in enumerate(spread.flatten(1, 2)):
        for channel, tangent in enumerate(tangents[group]):
            live = tangent.any(dim=1)
            if live.any():
                moved = tangent[live].t() @ weights[:, live].t()
                blocks[:, group, :, channel] += moved.view(-1, outputs, taps)


def _table(function: Callable[[Tensor], Tensor], point: Tensor, moves: Tensor) -> Tensor:
    """The Jacobian (elements, columns) of a function, by its rows that are not zero."""
    table = point.new_zeros(moves.numel(), point.numel())
    pull = torch.func.vjp(function, point)[1]
    for rows in torch.split(moves.flatten().nonzero()[:, 0], _ROWS):
        if not len(rows):  # nothing moves, as behind a layer of zeros: an empty vmap ends Python
            break
        units = point.new_zeros(len(rows), moves.numel())
        units[torch.arange(len(rows)), rows] = 1
        (pulled,) = torch.func.vmap(pull)(units.reshape(-1, *moves.shape))
        table[rows] = pulled.flatten(1)
    return table
