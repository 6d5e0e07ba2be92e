"""Bounds on every attacker of a noisy update: van Trees, nats, and how often any succeeds.

An attacker sees g(x) + σn and knows all else: weights, label, other records, noise, and the prior
N(m, C) of x. With Ã = C^½ E[JᵀJ] C^½ / σ², the expectation over x of the prior, in the prior's
own directions (``GaussianPrior``):

- E‖x̂ − x‖² ≥ tr C^½ (I + Ã)⁻¹ C^½ (H. van Trees 1968; R. Gill and B. Levit 1995, eq. 10);
- I(x; update) ≤ ½ ln det(I + Ã): of any law the entropy is at least −½ ln det of Fisher's
  information matrix + const (Stam 1959), the posterior's matrix is I + Ã on average, and ln det is
  concave (S. Efroimovich 1979).

Both hold given the label, and averaged over labels by convexity; information of layers with
independent noise adds up. A group of n directions only lowers the first and raises the second:
τ Σ 1/(1 + a_j) ≥ n τ/(1 + mean a_j), and Σ ln(1 + a_j) ≤ n ln(1 + mean a_j).

A reconstruction robust mechanism: an attacker succeeds at most as often as somebody who saw nothing
could under the mechanism's worst change of probabilities. J. Hayes, S. Mahloujifar and B. Balle,
"Bounding training data reconstruction in DP-SGD" (2023), theorem 2: at most 1 − f(κ) for a
mechanism of trade-off curve f against any fixed law of updates, such as noise around zero, where κ
is the best blind guess's chance.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import ndtr, ndtri_exp
from torch import Tensor

from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release
from gradaudit.core.statistics.intervals import skewed
from gradaudit.errors import NotApplicable

_FOLDS = 8
_STEEPEST = 50.0
Functional = Literal["mse_share", "nats"]


def van_trees(information: ArrayLike | Tensor, variances: ArrayLike | Tensor) -> Tensor:
    """Lower-bound the squared error of every estimate of a Gaussian vector.

    E‖x̂ − x‖² ≥ tr C^½ (I + Ã)⁻¹ C^½ = Σ_j λ_j [(I + Ã)⁻¹]_jj, the van Trees inequality (van Trees
    1968; Gill and Levit 1995, eq. 10; for gradients Guo et al. 2022, section 3).

    >>> float(van_trees([[3.0]], [2.0]))  # x ~ N(0, 2), seen through noise of a third of that
    0.5

    Args:
        information: Ã = C^½ E[JᵀJ] C^½ / σ² in the prior's principal directions, (d, d).
        variances: λ_j of the prior in these directions, (d,).
    """
    whole = torch.as_tensor(information)
    inverse = torch.linalg.inv(torch.eye(len(whole)).to(whole) + whole)
    error: Tensor = torch.as_tensor(variances).to(inverse) @ inverse.diagonal()
    return error


def gaussian_nats(information: ArrayLike | Tensor, counts: ArrayLike | Tensor = 1.0) -> Tensor:
    """Upper-bound the mutual information of a Gaussian vector and a noisy release, in nats.

    I(x; update) ≤ ½ ln det(I + Ã) (Efroimovich 1979; Stam 1959).

    >>> round(float(gaussian_nats([[3.0]])), 4)
    0.6931

    Args:
        information: Ã = C^½ E[JᵀJ] C^½ / σ² in the prior's principal directions, (d, d).
        counts: directions that each of these stands for, (d,).
    """
    information = torch.as_tensor(information)
    whole = torch.eye(len(information)).to(information) + information
    others = torch.as_tensor(counts).to(whole) - 1
    twice: Tensor = torch.linalg.slogdet(whole)[1] + (others * whole.diagonal().log()).sum()
    return twice / 2


class Estimate(NamedTuple):
    """A number of the expected information, from a sample of records.

    ``value`` is on average on the safe side of the true one: below a floor, above an information;
    ``safe`` is that for 97.5 % of samples.
    """

    value: float
    safe: float


def van_trees_bound(functional: Functional, units: Tensor, prior: GaussianPrior) -> Estimate:
    """Bound by the information of some units of records, (units, probes, probes).

    F(Â) itself errs on the wrong side on average: F is convex (Jensen), and Â misses directions.
    But a convex F lies above its tangents, F(A) ≥ F(B) + ⟨F′(B), A − B⟩ whatever B is, and the
    right side is linear in A. So B is made of other units than those that stand in for A: each has
    a number that is on average on the safe side, and the safe number is the end of Hall's interval
    for their mean, which is for skewed numbers: few records tell much. Concave F the other way
    round.
    """
    numbers = unit_numbers(functional, units, prior)
    floor, most = functional == "mse_share", 1.0 if functional == "mse_share" else math.inf
    safe = skewed(numbers.numpy())[0 if floor else 1]
    value, safe = (min(max(0.0, x), most) for x in (float(numbers.mean()), safe))
    return Estimate(value, safe)


def unit_numbers(functional: Functional, units: Tensor, prior: GaussianPrior) -> Tensor:
    """Compute every unit's tangent at other units' mean, (units,)."""
    folds = torch.arange(len(units)) % min(_FOLDS, len(units))
    numbers = torch.empty(len(units), dtype=torch.float64)
    for fold in range(int(folds.max()) + 1):
        held = folds == fold
        at = units[~held].mean(dim=0).requires_grad_()
        if functional == "mse_share":
            value = van_trees(at, prior.weights) / prior.variance
        else:
            value = gaussian_nats(at, prior.counts)
        (slope,) = torch.autograd.grad(value, at)
        moved = (units[held] - at.detach()) * slope
        numbers[held] = value.detach() + moved.sum(dim=(-2, -1))
    return numbers


def log_chance(prior: GaussianPrior, within: float) -> float:
    """Log of a bound on κ, that a blind guess is within this share of the prior's variance.

    The best guess is the mean (Anderson 1955). Chernoff's bound for Σ λ_j z_j² ≤ η tr C: the least
    s η tr C − ½ Σ ln(1 + 2 s λ_j) over s ≥ 0.
    """
    if within >= 1:
        return 0.0
    scales = prior.spectrum / prior.variance

    def exponent(log_s: float) -> float:
        s = math.exp(log_s)
        return s * within - 0.5 * float(torch.log1p(2 * s * scales).sum())

    ends = -_STEEPEST, _STEEPEST
    return min(0.0, float(minimize_scalar(exponent, bounds=ends, method="bounded").fun))


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
