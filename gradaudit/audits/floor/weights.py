"""Weights of records by their information, so that a few informative ones do not decide a floor.

The van Trees inequality inverts the average information. A trained network is sure of most records:
their gradients tell next to nothing, the average is that of the few others, and the floor lies far
below the error of the best attacker. With a weight q(x) on each record it is (B. Bobrovsky, E.
Mayer-Wolf and M. Zakai, "Some classes of global Cramér-Rao bounds", 1987, section 3, with a scalar
weight; by parts from E[(x̂ − x) ∇(q p)/p]), in the prior's directions z ~ N(0, I):

    E‖x̂ − x‖² ≥ E[q]² tr C^½ M⁻¹ C^½,    M = E[q² Ã(x)] + E[(∇q − q z)(∇q − q z)ᵀ].

It holds for every smooth bounded q; q = 1 is van Trees. Here q = 1/(1 + e/c) with e = ‖G‖² of the
whole gradient: e tells how much a record gives away, ∇e = 2 JᵀG comes with JᵀJ at no cost, and
∇q = −q (1 − q) ∇ ln e. With Ã = e/c in one direction M is E[q] but for ∇q, and the floor E[1/(1 +
Ã)]: the average of what each record's own information leaves. Levels c are quantiles of other
records' e. (E[q], M) ↦ E[q]² tr C M⁻¹ is convex, so tangents bound it from below.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.floor.functionals import share
from gradaudit.audits.floor.jacobians import JacobianProducts
from gradaudit.audits.floor.prior import GaussianPrior

_QUANTILES = (0.1, 0.3, 0.6)
"""Of other records' ‖G‖², at which records weigh one half."""


@dataclass(frozen=True)
class WeightedAverages:
    """Averages over the records of each unit, for each level.

    Attributes:
        told: of q² Ã, (levels, units, probes, probes).
        known: of (∇q − q z)(∇q − q z)ᵀ, (levels, units, probes, probes).
        shares: of q, (levels, units).
    """

    told: Tensor
    known: Tensor
    shares: Tensor

    def __add__(self, other: Self) -> Self:
        """That of two layers, whose records weigh alike."""
        return replace(self, told=self.told + other.told)

    def __mul__(self, factor: float) -> Self:
        """Under noise of this much less variance."""
        return replace(self, told=self.told * factor)

    def floors(self, held: Tensor, prior: GaussianPrior) -> Tensor:
        """The floor that each held unit speaks for, after the others, (levels, held units)."""
        whole = self.told + self.known
        return torch.stack(
            [
                _tangents(shares, information, held, prior)
                for shares, information in zip(self.shares, whole, strict=True)
            ]
        )


def _tangents(shares: Tensor, whole: Tensor, held: Tensor, prior: GaussianPrior) -> Tensor:
    """m² F(M) is no less than its tangent at the other units' m and M, (held units,)."""
    at, weight = whole[~held].mean(dim=0), float(shares[~held].mean())
    value, slope = share.of(at, prior)
    moved = ((whole[held] - at) * slope).sum(dim=(-2, -1))
    tangents: Tensor = weight**2 * (value + moved) + 2 * weight * value * (shares[held] - weight)
    return tangents


def levels_of(energies: Tensor) -> Tensor:
    """The c of the weights, from ‖G‖² of other records, (levels,); none where no gradient is."""
    energies = energies[energies.isfinite() & (energies > 0)].double()
    if not len(energies):
        return energies
    return torch.quantile(energies.log(), torch.tensor(_QUANTILES).to(energies)).exp()


@dataclass(frozen=True)
class Weights:
    """The weights of some records.

    Attributes:
        values: q, (levels, records).
        known: ∇q − q z in the directions of probes, (levels, records, probes).
    """

    values: Tensor
    known: Tensor

    @classmethod
    def of(cls, pulls: Sequence[JacobianProducts], levels: Tensor, z: Tensor) -> Self:
        """Weights of records with these Jacobian products.

        Args:
            pulls: of each layer.
            levels: (levels,).
            z: (records, probes), the records in the directions of the probes.
        """
        energy = torch.stack([pull.energy for pull in pulls]).sum(dim=0)
        along = torch.stack([pull.along for pull in pulls]).sum(dim=0)
        values = 1 / (1 + energy / levels.to(energy)[:, None])
        slopes = 2 * along / energy.clamp(min=torch.finfo(energy.dtype).tiny)[:, None]
        steep = (values * (1 - values)).unsqueeze(2) * slopes
        return cls(values, -steep - values.unsqueeze(2) * z)

    def squares(self, still: Tensor) -> Tensor:
        """(∇q − q z)(∇q − q z)ᵀ, (levels, records, probes, probes).

        Along a direction without variance, z is not read off a record: its square is one.
        """
        lengths = self.values.square().unsqueeze(2) * still.to(self.values)
        products: Tensor = self.known.unsqueeze(3) * self.known.unsqueeze(2)
        return products + torch.diag_embed(lengths)
