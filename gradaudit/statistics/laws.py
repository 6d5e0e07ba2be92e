"""Entropies, tails and quantiles of laws, without ``scipy.stats``, which takes a second to load."""

from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, bdtrc, betainc, stdtr, stdtrit

from gradaudit.statistics import CONFIDENCE


def entropy(prior: ArrayLike) -> float:
    """The entropy H(a) in nats of a variable whose values have these probabilities, (values,)."""
    probabilities = np.asarray(prior, dtype=np.float64)
    held = probabilities[probabilities > 0] / probabilities.sum()
    return float(-(held * np.log(held)).sum())


def student_quantile(freedom: float) -> float:
    """How many standard errors Student's two-sided interval reaches, at ``CONFIDENCE``."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def student_p(t: float, freedom: float) -> float:
    """The two-sided p-value of Student's t."""
    return 2 * float(stdtr(freedom, -abs(t)))


def binomial_at_least(hits: int, trials: int, share: float) -> float:
    """The probability of so many hits or more."""
    return float(betainc(hits, trials - hits + 1, share)) if hits > 0 else 1.0


def binomial_quantile(probability: float, trials: int, share: float) -> int:
    """The least count that so much of the binomial law lies at or below."""
    return bisect_left(
        range(trials), probability, key=lambda count: float(bdtr(count, trials, share))
    )


def binomial_exceeded(count: int, trials: int, share: float) -> float:
    """The probability of more hits than these."""
    return float(bdtrc(count, trials, share))


def binomial_limit(probability: float, trials: int, share: float) -> int:
    """The least count that is exceeded with no higher probability."""
    return bisect_left(
        range(trials), -probability, key=lambda count: -binomial_exceeded(count, trials, share)
    )
