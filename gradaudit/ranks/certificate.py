"""What residuals of Gaussian probes say about a nullity: the probability to miss one.

If B leaves a space N of dimension ν, a residual e = x − B y of a standard Gaussian probe x is, for
whatever y, at least as long as the part of x in N, which is a standard Gaussian of dimension ν.
Small residuals therefore exclude a large ν, by two laws that hold at once:

- ‖E‖²_F over p probes is at least χ² with ν·p degrees of freedom;
- the ν-th singular value of E is at least the least one of a ν × p standard Gaussian matrix, which
  is below s with probability at most (s e √p / (p−ν+1))^(p−ν+1) (Halko, Martinsson & Tropp 2011,
  proposition 10.4; Chen & Dongarra 2005).
"""

import math
from collections.abc import Sequence

from scipy.special import gammainc, gammaincinv


def largest_nullity(residuals: Sequence[float], alpha: float, dimension: int) -> int:
    """The largest nullity that the residuals leave possible.

    Args:
        residuals: singular values of E, one for every probe, in descending order.
        alpha: probability that a larger nullity would have left such residuals.
        dimension: of the space; no nullity is larger.
    """
    by_norm = _first_excluded_by_norm(residuals, alpha / 2, dimension)
    by_value = _first_excluded_by_values(residuals, alpha / 2, dimension)
    return min(by_norm, by_value) - 1


def least_norm(probes: int, alpha: float) -> float:
    """Frobenius norm of residuals below which no nullity is left possible."""
    return float(math.sqrt(2 * gammaincinv(probes / 2, alpha / 2)))


def _first_excluded_by_norm(residuals: Sequence[float], alpha: float, dimension: int) -> int:
    energy = sum(value**2 for value in residuals)
    low, high = 0, dimension + 1
    while high - low > 1:
        middle = (low + high) // 2
        excluded = gammainc(middle * len(residuals) / 2, energy / 2) <= alpha
        low, high = (low, middle) if excluded else (middle, high)
    return high


def _first_excluded_by_values(residuals: Sequence[float], alpha: float, dimension: int) -> int:
    probes = len(residuals)
    for nullity, value in enumerate(residuals, 1):
        spare = probes - nullity + 1
        if (value * math.e * math.sqrt(probes) / spare) ** spare <= alpha:
            return nullity
    return dimension + 1
