"""The two numbers that bounds are stated in, of what a record's update and the attacker know of it.

With information Ã of the update and precision P of what is known beforehand, both in the prior's
directions z: the least mean squared error over the prior's variance, and nats beyond the prior's. A
direction that a group stands for (``GaussianPrior``) only lowers the first and raises the second:
Σ_{j∈g} λ_j/(1 + a_j) ≥ |g| λ_min/(1 + mean a_j), and Σ ln(1 + a_j) ≤ |g| ln(1 + mean a_j), with
directions of several groups told to the attacker where that makes them apart.

How often any attacker can succeed at all, where every record's part of an update is clipped.

A reconstruction robust mechanism: an attacker succeeds at most as often as somebody who saw nothing
could under the mechanism's worst change of probabilities. J. Hayes, S. Mahloujifar and B. Balle,
"Bounding training data reconstruction in DP-SGD" (2023), theorem 2: at most 1 − f(κ) for a
mechanism of trade-off curve f against any fixed law of updates, such as noise around zero, where κ
is the best blind guess's chance.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.special import ndtr, ndtri_exp
from torch import Tensor

from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release
from gradaudit.errors import NotApplicable


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
"""½ ln det(P + Ã): the bound on an update's information about a record, in nats."""


_BISECTIONS = 200


def log_chance(prior: GaussianPrior, within: float) -> float:
    """Log of a bound on κ, that a blind guess is within this share of the prior's variance.

    The best guess is the mean (Anderson 1955). Chernoff's bound for Σ λ_j z_j² ≤ η tr C: the least
    s η tr C − ½ Σ ln(1 + 2 s λ_j) over s ≥ 0.
    """
    if within >= 1:
        return 0.0
    scales = prior.spectrum / prior.variance
    low, high = -50.0, 50.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        slope = within - float((scales / (1 + 2 * math.exp(middle) * scales)).sum())
        low, high = (middle, high) if slope < 0 else (low, middle)
    s = math.exp(high)
    return min(0.0, s * within - 0.5 * float(torch.log1p(2 * s * scales).sum()))


def success(releases: Sequence[Release], log_kappa: float) -> float:
    """Bound the chance of success from these parts of an update: Φ(Φ⁻¹(κ) + μ), μ² = Σ (Δ/σ)².

    Args:
        releases: each with noise.
        log_kappa: log of the chance of a blind guess.

    Raises:
        NotApplicable: some part is not clipped.
    """
    if any(release.reach is None for release in releases):
        raise NotApplicable(
            "no clip bounds what a record adds to the update; give one "
            "(--defense dp:clip=…,sigma=…)"
        )
    mu = math.hypot(*(release.shift for release in releases))
    return float(ndtr(ndtri_exp(log_kappa) + mu))
