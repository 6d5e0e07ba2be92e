"""The two numbers that bounds are stated in, of what a record's update and the attacker know of it.

With information Ã of the update and precision P of what is known beforehand, both in the prior's
directions z: the least mean squared error over the prior's variance, and nats beyond the prior's. A
direction that a group stands for (``GaussianPrior``) only lowers the first and raises the second:
Σ_{j∈g} λ_j/(1 + a_j) ≥ |g| λ_min/(1 + mean a_j), and Σ ln(1 + a_j) ≤ |g| ln(1 + mean a_j), with
directions of several groups told to the attacker where that makes them apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.audits.floor.prior import GaussianPrior


@dataclass(frozen=True)
class Functional:
    """A number F of a symmetric matrix, either convex or concave.

    Attributes:
        of: its value and slope at P + Ã, (probes, probes).
        sign: 1 for a convex one, which bounds from below; −1 for a concave one, from above.
        most: what it can be at most; it is 0 or more.
    """

    of: Callable[[Tensor, GaussianPrior], tuple[float, Tensor]]
    sign: int
    most: float = math.inf

    def __call__(
        self, information: Tensor, prior: GaussianPrior, precision: Tensor | None = None
    ) -> tuple[float, Tensor]:
        """F and its slope by Ã; the precision is that of the prior, I, where none is given."""
        known = torch.eye(len(information)) if precision is None else precision
        return self.of(known.to(information) + information, prior)

    def tangent(
        self, at: Tensor, information: Tensor, prior: GaussianPrior, precision: Tensor | None = None
    ) -> Tensor:
        """F(B) + ⟨F′(B), A − B⟩ of B and each A (…, probes, probes): F(A) is no worse."""
        value, slope = self(at, prior, precision)
        return value + ((information - at) * slope).sum(dim=(-2, -1))

    def best(self, *values: float) -> float:
        """The one of several bounds that says most."""
        return self.sign * max(self.sign * value for value in values)


def _share(whole: Tensor, prior: GaussianPrior) -> tuple[float, Tensor]:
    inverse = torch.linalg.inv(whole)
    weights = prior.weights.to(whole) / prior.variance
    value = float(weights @ inverse.diagonal())
    return value, prior.kept(-(inverse * weights) @ inverse)


def _nats(whole: Tensor, prior: GaussianPrior) -> tuple[float, Tensor]:
    counts = prior.counts.to(whole)
    grouped = whole.diagonal()
    value = torch.linalg.slogdet(whole)[1] + (counts - 1) @ grouped.log()
    slope = torch.linalg.inv(whole) + torch.diag((counts - 1) / grouped)
    return float(value) / 2, prior.kept(slope / 2)


share = Functional(_share, 1, 1.0)
"""tr(C (P + Ã)⁻¹) / tr C: the floor on the mean squared error over the prior's variance."""
nats = Functional(_nats, -1)
"""½ ln det(P + Ã): the bound on what an update tells of a record, in nats."""
