"""Hoeffding's interval of a mean of numbers in [0, 1], also of overlapping batches and of AUROCs.

The mean of n independent numbers in [0, 1] with expectation θ is as large as x, or larger, with a
probability of at most exp(−n kl(x, θ)) for x > θ, where kl(x, θ) = x ln(x/θ) + (1 − x)
ln((1 − x)/(1 − θ)); the numbers need not have one law (W. Hoeffding, "Probability inequalities for
sums of bounded random variables", 1963, theorem 1). The interval holds all θ with
n kl(x, θ) ≤ ln(2/α), and is true for every n.

The same bound holds for a mean over all batches of k of N records with n = N/k (rounded down), and
for an AUROC with n the number of disjoint units of the rarer value: both are means over orders of
the records of a mean of n independent numbers, and exp is convex (Hoeffding, section 5). For an
AUROC no interval that knows only n pairs is much narrower: where a unit of the rarer value ranks
above all others with probability θ and below all others else, n perfect ranks have probability θⁿ.
"""

import numpy as np
from scipy.special import kl_div

from gradaudit.statistics import CONFIDENCE

_HALVINGS = 60


def hoeffding(mean: float, count: float) -> tuple[float, float]:
    """The interval of the expectation of a mean in [0, 1] of numbers in [0, 1].

    Args:
        mean: in [0, 1].
        count: n independent numbers, or disjoint units, above 0; need not be whole.
    """
    most = np.log(2 / (1 - CONFIDENCE)) / count
    inside = np.full(2, mean)
    outside = np.array([0.0, 1.0])
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        far = kl_div(mean, middle) + kl_div(1 - mean, 1 - middle) > most
        inside, outside = np.where(far, inside, middle), np.where(far, middle, outside)
    return float(outside[0]), float(outside[1])
