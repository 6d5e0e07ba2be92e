"""Tangents of the gradients of piecewise linear networks (ReLU, max pooling, frozen batch norm).

Around a record such a network is linear, so δ at a site is linear in the residual r = ∂ℓ/∂z, with
a constant matrix: Δ = Σ_k r_k Δ_k, where Δ_k are the gradients of output k. It moves only as the
residual does: Δ̇ = Σ_k ṙ_k Δ_k and Δ̇ Aᵀ = Σ_k ṙ_k (Δ_k Aᵀ), which takes no backward pass a
direction.

Whether a network is of this kind at a record is not read off its modules but tested: the
difference to the general Δ̇ is linear in the direction, so if it is zero in a Gaussian direction it
is zero in all, with probability one. For the same reason an element that stands still in that
direction stands still in all.

Exact norms of LeNet take 1.6 times as long by general tangents (benchmarks/fast_paths.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from gradaudit.gradients.differentiation import Batch
from gradaudit.gradients.fast.factors import Tangents, over_uses
from gradaudit.gradients.norms import Directions, Norm
from gradaudit.gradients.sources import General, Point, unstretched

_TOLERANCE = 1e-8

Response = tuple[Tensor, dict[int, Tensor]]
"""Tangents of the outputs, (records, directions, outputs), and of what came in at the sites."""


@dataclass(frozen=True)
class PiecewiseLinear:
    """The source of tangents by the input for piecewise linear networks.

    Attributes:
        point: the gradients.
        deltas: Δ_k at every site, (records, outputs, …).
        curvature: ∂r/∂z, (records, outputs, outputs).
        direction: the Gaussian direction of the test.
        response: in that direction.
    """

    point: Point
    deltas: tuple[Tensor, ...]
    curvature: Tensor
    direction: Tensor
    response: Response

    @property
    def title(self) -> str:
        """How, in words for the report."""
        return "forward mode of a piecewise linear network"

    @classmethod
    def of(cls, general: General, direction: Tensor) -> PiecewiseLinear | None:
        """The source, if the network is piecewise linear at every record.

        Args:
            general: the source to compare with.
            direction: Gaussian, in the shape of a point.
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
        """The source for the records at these positions."""
        rest = self.deltas, self.curvature, self.response
        deltas, curvature, response = tree_map_only(Tensor, lambda x: x[at], rest)
        return PiecewiseLinear(self.point.part(at), deltas, curvature, self.direction, response)

    def tangents(
        self, directions: Directions, wanted: Collection[Norm]
    ) -> Iterator[tuple[str, Tangents]]:
        """Each parameter's Ġ."""
        outputs, seen = _responses(self.point.batch, directions.vectors)
        mixture, seen = outputs @ self.curvature, unstretched(seen)
        for name in self.point.batch.trace.uses:
            yield name, self.of_parameter(name, seen, mixture, wanted)

    def of_parameter(
        self, name: str, seen: Mapping[int, Tensor], mixture: Tensor, wanted: Collection[Norm]
    ) -> Tangents:
        """One parameter's tangents.

        Args:
            name: the parameter.
            seen: tangents of what came in, see ``Tangents``.
            mixture: ṙ, (records, directions, outputs).
            wanted: the norms that will be asked for.
        """
        base, uses = self.point.factors[name], self.point.batch.trace.uses[name]
        if base.formed(wanted):
            return Tangents(base, uses, seen, None, self.product(name, mixture))
        return Tangents(base, uses, seen, self._left(name, mixture))

    def product(self, name: str, mixture: Tensor) -> Tensor:
        """One parameter's Δ̇ Aᵀ, (records, directions, groups, out, in)."""
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
    """The response to directions (directions, …)."""

    def one(point: Tensor, record: Tensor, direction: Tensor) -> Response:
        def function(moving: Tensor) -> Response:
            outputs, seen = batch.trace.responses(moving, record)
            return outputs.flatten(), seen

        response: Response = torch.func.jvp(function, (point,), (direction,))[1]
        return response

    several = torch.func.vmap(one, in_dims=(None, None, 0))
    response: Response = torch.func.vmap(several, in_dims=(0, 0, None))(
        batch.points, batch.records, directions
    )
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

    components: tuple[Tensor, tuple[Tensor, ...]] = torch.func.vmap(one)(
        batch.points, batch.records
    )
    return components


def _curvatures(batch: Batch, outputs: Tensor) -> Tensor:
    """The Hessians of the losses by the flattened outputs, (records, outputs, outputs)."""

    def loss(flat: Tensor, target: Tensor) -> Tensor:
        shaped = flat.reshape(outputs.shape[1:])
        return batch.trace.view.loss.per_record(shaped, target.unsqueeze(0))[0]

    hessians: Tensor = torch.func.vmap(torch.func.hessian(loss))(outputs.flatten(1), batch.targets)
    return hessians
