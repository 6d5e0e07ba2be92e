"""How often any attacker can succeed at all, where every record's part of an update is clipped.

A reconstruction robust mechanism: an attacker succeeds at most as often as somebody who saw nothing
could under the mechanism's worst change of probabilities. J. Hayes, S. Mahloujifar and B. Balle,
"Bounding training data reconstruction in DP-SGD" (2023), theorem 2: at most 1 − f(κ) for a
mechanism of trade-off curve f against any fixed law of updates, such as noise around zero, where κ
is the best blind guess's chance.
"""

import math
from collections.abc import Sequence

import torch
from scipy.special import ndtr, ndtri_exp

from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release
from gradaudit.errors import NotApplicable

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


def success(releases: Sequence[Release], sizes: Sequence[int], log_kappa: float) -> float:
    """A bound on the chance of success of whoever sees these parts of an update.

    Gaussian noise: Φ(Φ⁻¹(κ) + μ) with μ² = Σ (Δ/σ)². Laplace noise of scale b: ε = Σ √W Δ/b by the
    L1 norm of W elements, and min(κ e^ε, 1 − (1 − κ) e^−ε).

    Args:
        releases: each with noise.
        sizes: elements that each clips together.
        log_kappa: log of the chance of a blind guess.

    Raises:
        NotApplicable: some part is not clipped, or noises are of both kinds.
    """
    if any(release.reach is None for release in releases):
        raise NotApplicable(
            "no clip bounds what a record adds to the update; give one "
            "(--defense dp:clip=…,sigma=…)"
        )
    kinds = {release.noise for release in releases}
    if kinds == {"gaussian"}:
        mu = math.hypot(*(release.shift for release in releases))
        return float(ndtr(ndtri_exp(log_kappa) + mu))
    if kinds == {"laplace"}:
        pairs = zip(releases, sizes, strict=True)
        epsilon = sum(math.sqrt(size) * release.shift for release, size in pairs)
        return min(
            math.exp(min(0.0, log_kappa + epsilon)), 1 + math.expm1(log_kappa) * math.exp(-epsilon)
        )
    raise NotApplicable("layers have Gaussian and Laplace noise; give them one kind")
