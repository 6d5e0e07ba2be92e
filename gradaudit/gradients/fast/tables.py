"""All columns of a piecewise linear network's Jacobian, from fewer backward passes than columns.

Such a network's response in every unit direction is a Jacobian of what comes in at the sites and of
the outputs, by the input. Where fewer elements move at the sites than the input has, it takes one
backward pass for each of them, instead of a forward one for each column. And consecutive columns
move few positions of a convolution's input, so that Δ Ȧᵀ = (Δ spread over the positions of the
input) · (their tangents) takes few of them.

Exact norms of LeNet take 5.6 times as long without tables (benchmarks/fast_paths.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from gradaudit.gradients.fast.factors import Tangents
from gradaudit.gradients.fast.piecewise import PiecewiseLinear
from gradaudit.gradients.norms import Directions, Norm
from gradaudit.gradients.operations import Convolution
from gradaudit.gradients.sources import Point, Source
from gradaudit.gradients.trace import Trace

_ROWS = 64


@dataclass(frozen=True)
class Tabulated:
    """One record of a piecewise linear network, with its response in every unit direction.

    Attributes:
        linear: the source for that record.
        outputs: tangents of the outputs, (outputs, columns).
        seen: of what came in, (elements, columns), by site; sites where the input itself comes in
            are left out.
    """

    linear: PiecewiseLinear
    outputs: Tensor
    seen: dict[int, Tensor]

    @classmethod
    def of(cls, linear: PiecewiseLinear) -> Tabulated:
        """Tabulate the response."""
        batch = linear.point.batch
        (point,), (record,) = batch.points, batch.records
        response, _ = linear.response
        outputs = _table(
            partial(_outputs, batch.trace, record), point, torch.ones_like(response[0, 0])
        )
        seen = {
            site: _table(partial(_came_in, batch.trace, record, site), point, tangent[0, 0])
            for site, tangent in moving(linear).items()
        }
        return cls(linear, outputs, seen)

    @property
    def title(self) -> str:
        """How, in words for the report."""
        return self.linear.title

    @property
    def point(self) -> Point:
        """The gradients."""
        return self.linear.point

    def part(self, at: slice) -> Source:
        """The source without a table."""
        return self.linear.part(at)

    def tangents(
        self, directions: Directions, wanted: Collection[Norm]
    ) -> Iterator[tuple[str, Tangents]]:
        """Each parameter's Ġ, (1, directions, …)."""
        if directions.columns is None:
            yield from self.linear.tangents(directions, wanted)
            return
        mixture = self.outputs[None, :, directions.columns].mT @ self.linear.curvature
        for name in self.point.batch.trace.uses:
            yield name, self._of_parameter(name, directions, mixture, wanted)

    def _of_parameter(
        self, name: str, directions: Directions, mixture: Tensor, wanted: Collection[Norm]
    ) -> Tangents:
        uses, base = self.point.batch.trace.uses[name], self.point.factors[name]
        if name in self._spread and base.formed(wanted):
            product = self.linear.product(name, mixture)
            _add_moved(product, self._spread[name], self._rows(uses[0][0], directions))
            return Tangents(base, uses, {}, None, product)
        shapes = {site: self.linear.response[1][site].shape for site, _ in uses}
        seen = {
            site: self._rows(site, directions)
            .contiguous()
            .t()
            .contiguous()
            .reshape(1, -1, *shape[2:])
            for site, shape in shapes.items()
        }
        return self.linear.of_parameter(name, seen, mixture, wanted)

    def _rows(self, site: int, directions: Directions) -> Tensor:
        """Tangents of what came in, (elements, directions)."""
        if site not in self.seen:
            return directions.vectors.flatten(1).t()
        return self.seen[site][:, directions.columns]

    @cached_property
    def _spread(self) -> dict[str, Tensor]:
        """Δ spread over the input's positions, of convolutions that are used once, by parameter."""
        spread = {}
        for name, ((site, use), *others) in self.point.batch.trace.uses.items():
            if isinstance(use, Convolution) and use.shape[0] == 1 and not others:
                space = self.linear.response[1][site].shape[-len(use.kernel) :]
                spread[name] = use.spread(self.point.factors[name].left, space)[0]
        return spread


def moving(linear: PiecewiseLinear) -> dict[int, Tensor]:
    """The tested tangents of what came in, but where that is the input itself."""
    point = linear.direction.flatten()
    return {
        site: came_in
        for site, came_in in linear.response[1].items()
        if not (came_in[0].numel() == len(point) and (came_in.flatten(1) == point).all())
    }


def tables_pay(linear: PiecewiseLinear, memory: int) -> bool:
    """Whether a table takes fewer backward passes than there are columns, and fits."""
    columns = linear.direction.numel()
    rows = linear.response[0].shape[2] + sum(x[0].numel() for x in moving(linear).values())
    passes = sum(int(x[0].count_nonzero()) for x in moving(linear).values())
    return passes <= columns and 8 * rows * columns <= memory


def _add_moved(product: Tensor, spread: Tensor, rows: Tensor) -> None:
    """Add Δ Ȧᵀ.

    Args:
        product: (1, directions, groups, out, channels × taps).
        spread: Δ over the input's positions, (groups, out, taps, positions).
        rows: tangents of the input, (groups × channels × positions, directions).
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
        units = point.new_zeros(len(rows), moves.numel())
        units[torch.arange(len(rows)), rows] = 1
        (pulled,) = torch.func.vmap(pull)(units.reshape(-1, *moves.shape))
        table[rows] = pulled.flatten(1)
    return table


def _outputs(trace: Trace, record: Tensor, point: Tensor) -> Tensor:
    return trace.responses(point, record)[0].flatten()


def _came_in(trace: Trace, record: Tensor, site: int, point: Tensor) -> Tensor:
    return trace.responses(point, record)[1][site]
