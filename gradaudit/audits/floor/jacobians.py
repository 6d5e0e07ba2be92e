"""Products JᵀJ of gradients' Jacobians in some directions, without forming what need not be.

A parameter's gradient is G = Δ Aᵀ over T positions (``gradients.operations``) and moves by Ġ = Δ̇ Aᵀ
+ Δ Ȧᵀ. Where T (in + out) < in · out, a basis Q of what came in and R of Δ = Q_Δ R keep all inner
products: Ġ is laid out as Ġ Q (out × T) beside R (Ȧ − Q Qᵀ Ȧ)ᵀ (T × in), and G Q beside zeros.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gradaudit.gradients.differentiation import Batch, Differentiation
from gradaudit.gradients.sources import FactoredGradients, Factors, over_uses, unstretched
from gradaudit.gradients.trace import Gradients
from gradaudit.models.target import Layer

Laid = tuple[Tensor, Tensor]
"""Tangents (records, directions, elements) and the gradient (records, elements), up to rotation."""


@dataclass(frozen=True)
class JacobianProducts:
    """Inner products of one layer's gradient g and its Jacobian in some directions.

    Attributes:
        products: JᵀJ in the directions, (records, directions, directions).
        along: Jᵀg, (records, directions).
        energy: ‖g‖², (records,).
    """

    products: Tensor
    along: Tensor
    energy: Tensor

    @classmethod
    def of(cls, laid: Laid) -> Self:
        """The products of tangents and gradient side by side."""
        tangents, gradient = laid
        along = (tangents @ gradient.unsqueeze(2)).squeeze(2)
        return cls(tangents @ tangents.mT, along, gradient.square().sum(dim=1))

    def __add__(self, other: Self) -> Self:
        """The products of both gradients side by side."""
        return type(self)(
            self.products + other.products, self.along + other.along, self.energy + other.energy
        )


def jacobian_products(
    batch: Batch, way: Differentiation, directions: Tensor, layers: Sequence[Layer], at_once: int
) -> dict[str, JacobianProducts]:
    """Jacobian products of every layer for each record of a batch, by directions (directions, …).

    Tangents are taken in ``at_once`` directions at a time.
    """
    laid: dict[str, list[Laid]] = {}
    with torch.no_grad():
        point = FactoredGradients.of(batch, way)
        for some in torch.split(directions, at_once):
            for name, part in _laid_out(point, way.moved(batch, some, "point")):
                laid.setdefault(name, []).append(part)
        parts = {name: JacobianProducts.of(_together(laid.pop(name))) for name in list(laid)}
    return {layer.name: sum_of([parts[name] for name in layer.parameter_names]) for layer in layers}


def _together(parts: Sequence[Laid]) -> Laid:
    tangents = [tangent for tangent, _ in parts]
    return tangents[0] if len(parts) == 1 else torch.cat(tangents, dim=1), parts[0][1]


def sum_of(parts: Sequence[JacobianProducts]) -> JacobianProducts:
    """The products of one or more gradients side by side."""
    first, *others = parts
    for other in others:
        first = first + other
    return first


def _laid_out(point: FactoredGradients, moved: Gradients) -> Iterator[tuple[str, Laid]]:
    for name, tangent in moved.whole.items():
        yield name, (tangent.flatten(2), point.gradients.whole[name].flatten(1))
    seen = unstretched(moved.seen)
    for name, uses in point.batch.trace.uses.items():
        left = over_uses([use.left(moved.deltas[site]) for site, use in uses])
        moving = [(site, use) for site, use in uses if use.moves and site in seen]
        right = over_uses([use.right(seen[site]) for site, use in moving]) if moving else None
        yield name, _factored(point.factors[name], left, right)


def _factored(base: Factors, left: Tensor, right: Tensor | None) -> Laid:
    """Products of Δ̇ (records, groups, directions, out, positions) and Ȧ (…, in, positions)."""
    inputs, positions = base.right.shape[2:]
    outputs = base.left.shape[2]
    short = positions * (inputs + outputs) < inputs * outputs
    parts, gradient = _short(base, left, right) if short else _whole(base, left, right)
    laid = [part.transpose(1, 2).flatten(2) for part in parts]
    together = torch.cat(laid, dim=2)
    padding = together.shape[2] - gradient.flatten(1).shape[1]
    return together, torch.nn.functional.pad(gradient.flatten(1), (0, padding))


def _whole(base: Factors, left: Tensor, right: Tensor | None) -> tuple[list[Tensor], Tensor]:
    moved = left @ base.right.mT.unsqueeze(2)
    if right is not None:
        moved = moved + base.left.unsqueeze(2) @ right.mT
    return [moved], base.gradient()


def _short(base: Factors, left: Tensor, right: Tensor | None) -> tuple[list[Tensor], Tensor]:
    basis, triangle = torch.linalg.qr(base.right)
    moved = left @ triangle.mT.unsqueeze(2)
    gradient = base.left @ triangle.mT
    if right is None:
        return [moved], gradient
    within = basis.mT.unsqueeze(2) @ right
    outside = right - basis.unsqueeze(2) @ within
    scale = torch.linalg.qr(base.left)[1].unsqueeze(2)
    return [moved + base.left.unsqueeze(2) @ within.mT, scale @ outside.mT], gradient
