"""Guarantees of Gaussian and Laplace mechanisms: exact epsilons, and the classical formula.

A Gaussian mechanism that moves its release by at most S in L2 norm under noise N(0, σ²I) is exactly
as private as telling N(0, 1) from N(μ, 1) with μ = S/σ: projecting onto the difference is
sufficient. Everything here is a function of that μ.

Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy" (2018), theorem 8.

One step is audited; a run takes many, each on a random batch. Steps on the whole data compose
exactly: T Gaussian mechanisms of μ are one of μ√T (Dong, Roth and Su 2019, corollary 3.3). Poisson
sampled batches need a privacy loss distribution (tight, to its discretisation) of Google's
dp-accounting, an optional dependency.
"""

import math
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri

from gradaudit.core.noise_laws import NoisePlace
from gradaudit.core.parts import library
from gradaudit.errors import UsageError

FloatArray = NDArray[np.float64]
Relation = Literal["replace", "remove"]

_BISECTIONS = 100


def log_delta_gaussian(epsilon: ArrayLike, mu: ArrayLike) -> FloatArray:
    """Log of δ(ε): ln[Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)] of N(0, 1) against N(μ, 1), elementwise.

    Both terms and their difference are kept as logarithms, so neither e^ε nor a tail over- or
    underflows. For ε ≥ 0 and 0 < μ < ∞.
    """
    epsilon, mu = np.asarray(epsilon, float), np.asarray(mu, float)
    first = log_ndtr(mu / 2 - epsilon / mu)
    log_ratio = epsilon + log_ndtr(-mu / 2 - epsilon / mu) - first
    with np.errstate(divide="ignore"):
        difference: FloatArray = first + np.log(-np.expm1(np.minimum(log_ratio, 0)))
    return difference


@overload
def epsilon_gaussian(mu: float, delta: float) -> float: ...
@overload
def epsilon_gaussian(mu: ArrayLike, delta: ArrayLike) -> FloatArray: ...
def epsilon_gaussian(mu: ArrayLike, delta: ArrayLike) -> float | FloatArray:
    """Compute the epsilon of a Gaussian mechanism, elementwise.

    The smallest ε with Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) ≤ δ (Balle and Wang 2018, theorem 8), by
    bisection from above: the root is below μ²/2 − μ Φ⁻¹(δ).

    >>> round(epsilon_gaussian(1.0, 1e-5), 4), round(epsilon_gaussian(20.0, 1e-5), 2)
    (4.3772, 284.39)

    Args:
        mu: μ ≥ 0, sensitivity over noise; ε is 0 where it is 0, infinite where it is infinite.
        delta: δ, 0 < δ < 1.

    Raises:
        ValueError: μ or δ is out of its range.
    """
    mu, delta = np.broadcast_arrays(np.asarray(mu, float), np.asarray(delta, float))
    if not (np.all(mu >= 0) and np.all((delta > 0) & (delta < 1))):
        raise ValueError("epsilon_gaussian needs mu >= 0 and 0 < delta < 1")
    regular = (mu > 0) & np.isfinite(mu)
    safe, log_delta = np.where(regular, mu, 1.0), np.log(delta)
    low, high = np.zeros_like(safe), np.maximum(safe**2 / 2 - safe * ndtri(delta), 0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_small = log_delta_gaussian(middle, safe) > log_delta
        low, high = np.where(too_small, middle, low), np.where(too_small, high, middle)
    free = log_delta_gaussian(0.0, safe) <= log_delta
    epsilon = np.where(regular, np.where(free, 0.0, high), np.where(mu > 0, np.inf, 0.0))
    return float(epsilon) if epsilon.ndim == 0 else epsilon


def mu_gaussian(epsilon: float, delta: float) -> float:
    """Compute the μ of the Gaussian mechanism that is (ε, δ)-private.

    The inverse of ``epsilon_gaussian``: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) = δ, which grows in μ, as
    its root by Brent's method. Noise of S/μ makes a sensitivity of S (ε, δ)-private.

    >>> round(mu_gaussian(epsilon_gaussian(2.5, 1e-6), 1e-6), 9)
    2.5

    Args:
        epsilon: ε > 0, finite.
        delta: δ, 0 < δ < 1.

    Raises:
        ValueError: ε or δ is out of its range.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise ValueError("mu_gaussian needs 0 < epsilon < inf and 0 < delta < 1")
    most = math.sqrt(2 * epsilon) + 2 * float(ndtri((1 + delta) / 2))

    def excess(mu: float) -> float:
        return float(log_delta_gaussian(epsilon, mu)) - math.log(delta)

    return float(brentq(excess, 1e-9, most, xtol=1e-13))


def mu_of_mechanism(
    clip: float,
    sigma: float,
    *,
    noise: NoisePlace = "sum",
    records: int = 1,
    relation: Relation = "replace",
) -> float:
    """μ = S/σ of a mechanism that clips to Δ and adds Gaussian noise: its worst case.

    Replacing a record (or an attribute of it) moves its clipped gradient between two points of the
    ball of radius Δ, by up to 2Δ; removing it (putting zero in its place) by up to Δ. With k
    records, and σ always the standard deviation of what is added:

    - ``sum``: noise on the sum of clipped records, μ = S/σ;
    - ``record``: noise on each clipped record, σ√k on their sum, μ = S/(σ√k);
    - ``mean``: noise on the mean of clipped records, μ = S/(kσ);
    - ``release``: the batch gradient itself is clipped. Any two batches then lie within 2Δ of each
      other, also when a record is removed, unless it was the only one.

    Raises:
        ValueError: Δ or σ is negative or the batch is empty.
    """
    if clip < 0 or sigma < 0 or records < 1:
        raise ValueError("mu_of_mechanism needs clip >= 0, sigma >= 0 and records >= 1")
    one_sided = relation == "remove" and (noise != "release" or records == 1)
    sensitivity = clip if one_sided else 2 * clip
    spread = {"sum": 1.0, "release": 1.0, "record": math.sqrt(records), "mean": float(records)}
    if sensitivity == 0:
        return 0.0
    return sensitivity / (sigma * spread[noise]) if sigma else math.inf


def epsilon_laplace(l1_distance: float, scale: float) -> float:
    """ε = ‖g1 − g0‖₁ / b of two releases under Laplace noise of scale b in every element, δ = 0.

    For the worst case under an L2 clip of Δ put 2Δ√elements for the distance. Zero distance gives
    0, also without noise; a distance without noise gives infinity.
    """
    if l1_distance < 0 or scale < 0:
        raise ValueError("epsilon_laplace needs a distance >= 0 and a scale >= 0")
    if l1_distance == 0:
        return 0.0
    return l1_distance / scale if scale else math.inf


def epsilon_classical(mu: float, delta: float) -> float:
    """ε = √(2 ln(1.25/δ)) · S/σ (Dwork and Roth 2014, theorem A.1), proved only for ε ≤ 1.

    ``mu`` is S/σ, of which Li24 takes S = Δ; 0 < δ < 1.
    """
    if mu < 0 or not 0 < delta < 1:
        raise ValueError("epsilon_classical needs mu >= 0 and 0 < delta < 1")
    return math.sqrt(2 * math.log(1.25 / delta)) * mu


def epsilon_composed(
    noise_multiplier: float,
    steps: int,
    delta: float,
    *,
    sampling_rate: float = 1.0,
    relation: Relation = "replace",
) -> float:
    """ε at δ after ``steps`` steps of DP-SGD with noise on the sum of clipped gradients.

    ``noise_multiplier`` is σ/Δ, 0 for none, 0 < δ < 1, and ``sampling_rate`` the probability with
    which a record is in a batch, 1 for the whole data; neighbouring data sets replace one record,
    or remove one.

    Raises:
        UsageError: dp-accounting is missing, or a number is out of its range.
    """
    if noise_multiplier < 0 or steps < 1 or not 0 < sampling_rate <= 1 or not 0 < delta < 1:
        raise UsageError(
            "composition needs a noise multiplier >= 0, at least one step, a sampling rate in "
            "(0, 1] and delta in (0, 1)"
        )
    if noise_multiplier == 0:
        return math.inf
    if sampling_rate == 1:
        sensitivity = 2 if relation == "replace" else 1
        return epsilon_gaussian(sensitivity * math.sqrt(steps) / noise_multiplier, delta)
    laws = library("dp_accounting", "accounting", "composition over sampled batches")
    neighbours = "REPLACE_ONE" if relation == "replace" else "ADD_OR_REMOVE_ONE"
    ledger = laws.pld.PLDAccountant(neighboring_relation=laws.NeighboringRelation[neighbours])
    step = laws.PoissonSampledDpEvent(sampling_rate, laws.GaussianDpEvent(noise_multiplier))
    return float(ledger.compose(step, steps).get_epsilon(delta))
