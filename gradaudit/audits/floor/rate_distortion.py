"""Nats and mean squared errors of a Gaussian record, each from the other, by filling with water.

No guess x̂ of x ~ N(0, diag λ) with the error D = Σ min(θ, λ_j) has fewer nats of x than ½ Σ
ln(λ_j/θ) over λ_j > θ (T. Cover and J. Thomas, "Elements of information theory", 2006, theorem
10.3.3). So who errs by D has shown as many nats, and who has so many nats errs by D or more.
"""

import math
from collections.abc import Callable

from torch import Tensor

_BISECTIONS = 100


def nats_shown(share: float, spectrum: Tensor) -> float:
    """Nats between record and guess, at least, where the error is this share of the variance.

    Args:
        share: mean squared error over Σ λ.
        spectrum: λ, the prior's variances, (d,).
    """
    if share >= 1:
        return 0.0
    if share <= 0:
        return math.inf
    level = _level(lambda level: float(spectrum.clamp(max=level).sum()), share, spectrum)
    return _nats(level, spectrum)


def least_share(nats: float, spectrum: Tensor) -> float:
    """The least mean squared error, over Σ λ, of any guess that has so many nats or fewer."""
    level = _level(lambda level: -_nats(level, spectrum), -nats / float(spectrum.sum()), spectrum)
    return float(spectrum.clamp(max=level).sum() / spectrum.sum())


def _nats(level: float, spectrum: Tensor) -> float:
    return float((spectrum / level).clamp(min=1).log().sum()) / 2


def _level(rising: Callable[[float], float], share: float, spectrum: Tensor) -> float:
    """The water's level at which what rises with it is this share of the variance.

    Of the two levels around it the lower one: its error is no more, and its nats no fewer.
    """
    wanted, greatest = share * float(spectrum.sum()), float(spectrum.max())
    low, high = math.log(greatest) - 700, math.log(greatest)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(math.exp(middle)) <= wanted else (low, middle)
    return math.exp(low)
