"""Tangents of the gradients of piecewise linear networks (ReLU, max pooling, frozen batch norm).

Around a record such a network is linear, so δ at a site is linear in the residual r = ∂ℓ/∂z, with
a constant matrix: Δ = Σ_k r_k Δ_k, where Δ_k are the gradients of output k. It moves only as the
residual does: Δ̇ = Σ_k ṙ_k Δ_k and Δ̇ Aᵀ = Σ_k ṙ_k (Δ_k Aᵀ), which takes no backward pass a
direction. And where fewer elements come in at the sites than a record has, all columns of the
Jacobian together take one backward pass for each of those elements (``tabulated``).

Whether a network is of this kind at a record is not read off its modules but tested: the
difference to the general Δ̇ is linear in the direction, so if it is zero in a Gaussian direction it
is zero in all, with probability one. For the same reason an element that stands still in that
direction stands still in all.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from gradaudit.gradients.differentiation import Batch
from gradaudit.gradients.directions import Directions
from gradaudit.gradients.factors import Tangents, Uses, over_uses
from gradaudit.gradients.norms import Norm, Norms
from gradaudit.gradients.operations import Convolution
from gradaudit.gradients.sources import General, Point, unstretched
from gradaudit.gradients.trace import Trace

_TOLERANCE = 1e-8
_ROWS = 64

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
        table: in every unit direction, (records, rows, elements of the point), once tabulated; the
            sites where the point itself comes in are left out.
    """

    point: Point
    deltas: tuple[Tensor, ...]
    curvature: Tensor
    direction: Tensor
    response: Response
    table: Response | None = None

    @property
    def title(self) -> str:
        """How, in words for the report."""
        return "forward mode of a piecewise linear network"

    @classmethod
    def of(cls, general: General, direction: Tensor) -> "PiecewiseLinear | None":
        """The source, if the network is piecewise linear at every record.

        Args:
            general: the source to compare with.
            direction: Gaussian, in the shape of a point.
        """
        batch, directions = general.point.batch, direction.unsqueeze(0)
        response = _responses(batch, directions)
        found = cls(general.point, _deltas(batch), _curvatures(batch), direction, response)
        mixture = response[0] @ found.curvature
        for components, tangent in zip(found.deltas, general.moved(directions).deltas, strict=True):
            linear = torch.einsum("rnk,rk...->rn...", mixture, components)
            if (linear - tangent).abs().max() > _TOLERANCE * tangent.abs().max():
                return None
        return found

    def part(self, at: slice) -> "PiecewiseLinear":
        """The source for the records at these positions."""
        rest = self.deltas, self.curvature, self.response, self.table
        deltas, curvature, response, table = tree_map_only(Tensor, lambda x: x[at], rest)
        return PiecewiseLinear(
            self.point.part(at), deltas, curvature, self.direction, response, table
        )

    @property
    def table_size(self) -> int:
        """Elements of one record's table."""
        rows = self.response[0].shape[2] + sum(x[0].numel() for x in self._moving.values())
        return self.direction.numel() * rows

    @property
    def table_pays(self) -> bool:
        """Whether a table takes fewer backward passes than there are columns."""
        rows = sum(int(x[0].count_nonzero()) for x in self._moving.values())
        return rows <= self.direction.numel()

    def tabulated(self) -> "PiecewiseLinear":
        """The same with the response in every unit direction."""
        outputs, seen = self._empty(self.response[0]), {}
        for site, came_in in self._moving.items():
            seen[site] = self._empty(came_in)
        batch = self.point.batch
        for k, (point, record) in enumerate(zip(batch.points, batch.records, strict=True)):
            moving = torch.ones_like(self.response[0][k, 0])
            _pull(partial(_outputs, batch.trace, record), point, moving, outputs[k])
            for site, came_in in self._moving.items():
                function = partial(_came_in, batch.trace, record, site)
                _pull(function, point, came_in[k, 0], seen[site][k])
        return replace(self, table=(outputs, seen))

    def _empty(self, response: Tensor) -> Tensor:
        """Zeros (records, rows, elements of the point)."""
        return response.new_zeros(len(response), response[0].numel(), self.direction.numel())

    def norms(self, directions: Directions, wanted: Collection[Norm]) -> dict[str, Norms]:
        """By parameter, (records, directions) norms of Ġ."""
        outputs, seen = self._responses(directions)
        mixture, seen = outputs @ self.curvature, unstretched(seen)
        found = {}
        for name, uses in self.point.batch.trace.uses.items():
            tangents = self._tangents(name, uses, seen, mixture, wanted)
            if name in self._spread and directions.columns and tangents.product is not None:
                product = self._at_units(tangents.product, self._spread[name], directions.columns)
                tangents = replace(tangents, seen={}, product=product)
            found[name] = tangents.norms(wanted)
        return found

    def _tangents(
        self,
        name: str,
        uses: Uses,
        seen: Mapping[int, Tensor],
        mixture: Tensor,
        wanted: Collection[Norm],
    ) -> Tangents:
        base = self.point.factors[name]
        if base.formed(wanted) and name in self._gradients:
            gradients = self._gradients[name]
            product = mixture @ gradients.flatten(2)
            product = product.reshape(*mixture.shape[:2], *gradients.shape[2:])
            return Tangents(base, uses, seen, None, product)
        left = torch.einsum("rnk,rgkot->rgnot", mixture, self._lefts[name])
        return Tangents(base, uses, seen, left)

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

    @cached_property
    def _spread(self) -> dict[str, Tensor]:
        """Δ Ȧᵀ by the input of the convolutions that see nothing else, by parameter."""
        found = {}
        for name, ((site, use), *others) in self.point.batch.trace.uses.items():
            alone = not others and site not in self._moving and use.shape[0] == 1
            if self.table and alone and isinstance(use, Convolution):
                space = self.response[1][site].shape[-len(use.kernel) :]
                found[name] = use.spread(self.point.factors[name].left, space)
        return found

    def _at_units(self, product: Tensor, spread: Tensor, columns: slice) -> Tensor:
        """Add Δ Ȧᵀ in unit directions of the input, each of which moves one channel's taps."""
        taps, size = spread.shape[3:]
        blocks = product.view(*product.shape[:4], -1, taps)
        at = torch.arange(columns.start, columns.stop, device=product.device)
        group, channel = at // size // blocks.shape[4], at // size % blocks.shape[4]
        blocks[:, at - columns.start, group, :, channel] += spread[:, group, :, :, at % size]
        return product

    @cached_property
    def _moving(self) -> dict[int, Tensor]:
        """The tested response of what came in, but where that is the point itself."""
        point = self.direction.flatten()
        return {
            site: came_in
            for site, came_in in self.response[1].items()
            if not (came_in[0].numel() == len(point) and (came_in.flatten(1) == point).all())
        }

    def _responses(self, directions: Directions) -> Response:
        if self.table is None or directions.columns is None:
            return _responses(self.point.batch, directions.vectors)
        outputs, tables = self.table
        at = directions.columns
        seen = {
            site: _transposed(tables[site][:, :, at]).reshape(len(outputs), -1, *came_in.shape[2:])
            if site in tables
            else directions.vectors.reshape(1, -1, *came_in.shape[2:])
            for site, came_in in self.response[1].items()
        }
        return outputs[:, :, at].mT, seen


def _transposed(tables: Tensor) -> Tensor:
    """Matrices transposed in memory, (records, columns, rows): copying each whole is fast."""
    return torch.stack([table.contiguous().t().contiguous() for table in tables])


def _outputs(trace: Trace, record: Tensor, point: Tensor) -> Tensor:
    return trace.responses(point, record)[0].flatten()


def _came_in(trace: Trace, record: Tensor, site: int, point: Tensor) -> Tensor:
    return trace.responses(point, record)[1][site]


def _pull(
    function: Callable[[Tensor], Tensor], point: Tensor, moving: Tensor, table: Tensor
) -> None:
    """Write the rows of a Jacobian that are not zero into a table (rows, elements of the point)."""
    pull = torch.func.vjp(function, point)[1]
    for rows in torch.split(moving.flatten().nonzero()[:, 0], _ROWS):
        units = point.new_zeros(len(rows), moving.numel())
        units[torch.arange(len(rows)), rows] = 1
        (pulled,) = torch.func.vmap(pull)(units.reshape(-1, *moving.shape))
        table[rows] = pulled.flatten(1)


def _responses(batch: Batch, directions: Tensor) -> Response:
    """The response to directions (directions, …)."""

    def one(point: Tensor, record: Tensor, direction: Tensor) -> Response:
        def function(moving: Tensor) -> Response:
            outputs, seen = batch.trace.responses(moving, record)
            return outputs.flatten(), seen

        found: Response = torch.func.jvp(function, (point,), (direction,))[1]
        return found

    several = torch.func.vmap(one, in_dims=(None, None, 0))
    found: Response = torch.func.vmap(several, in_dims=(0, 0, None))(
        batch.points, batch.records, directions
    )
    return found


def _deltas(batch: Batch) -> tuple[Tensor, ...]:
    """The gradients of every output at every site, (records, outputs, …)."""

    def one(point: Tensor, record: Tensor) -> tuple[Tensor, ...]:
        outputs, pull = torch.func.vjp(
            lambda perturbations: batch.trace.responses(point, record, perturbations)[0].flatten(),
            batch.trace.zeros(point),
        )[:2]
        units = torch.eye(len(outputs), dtype=outputs.dtype, device=outputs.device)
        (deltas,) = torch.func.vmap(pull)(units)
        return tuple(deltas)

    found: tuple[Tensor, ...] = torch.func.vmap(one)(batch.points, batch.records)
    return found


def _curvatures(batch: Batch) -> Tensor:
    """The Hessians of the losses by the outputs, (records, outputs, outputs)."""

    def one(point: Tensor, target: Tensor, record: Tensor) -> Tensor:
        outputs = batch.trace.responses(point, record)[0]

        def loss(flat: Tensor) -> Tensor:
            shaped = flat.reshape(outputs.shape)
            return batch.trace.view.loss.per_record(shaped, target.unsqueeze(0))[0]

        hessian: Tensor = torch.func.hessian(loss)(outputs.flatten())
        return hessian

    found: Tensor = torch.func.vmap(one)(batch.points, batch.targets, batch.records)
    return found
