"""Lower bounds on epsilon from guesses in both tails, with abstention between.

For every release a fair coin of its own picks the hypothesis. With two thresholds low ≤ high fixed
before, a release t ≥ high is guessed to come from the alternative, one t < low from the null, and
nothing is said between. With the events A = {t ≥ high} and B = {t < low}, a release is guessed
right with probability c and wrong with probability w,

    c = (P₁(A) + P₀(B))/2    and    w = (P₀(A) + P₁(B))/2.

If the mechanism is (ε, δ)-private for the pair, then P₁(A) ≤ e^ε P₀(A) + δ and
P₀(B) ≤ e^ε P₁(B) + δ, so that c ≤ e^ε w + δ.

**Why the bound is valid.** Releases are independent, and so are their coins. Let δ = 0 first.
Given the number r of guesses, that of right ones is binomial with rate c/(c + w) ≤ e^ε/(1 + e^ε),
and the lower Clopper–Pearson limit of that rate, as a logit, lies above ε with probability at most
α. This is the test of Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run"
(2023, theorem 5.2), P(W ≥ v) ≤ P(Bin(r, e^ε/(1 + e^ε)) ≥ v), and the limit inverts it.

**Its δ term.** Mark each right guess at random with probability min(δ, c)/c. Marked guesses are
Bin(n, min(δ, c)) of the n releases, and the other right ones have a rate of c − min(δ, c) ≤ e^ε w:
given the number b of marked ones and of the other guesses, they are binomial with a rate of at
most e^ε/(1 + e^ε). Nobody sees b, but a limit that leaves s right guesses out is no larger than
the one that leaves the b out wherever b ≤ s. It exceeds ε with probability at most α' + P(Bin(n,
δ) > s), where α' is its own error probability. ``spared_guesses`` takes the smallest s that costs
a hundredth of α. Steinke's own term, 2nδ max_i P(v > Bin ≥ v − i)/i, allows for coins that one
release depends on together, which these do not, and costs more: with 10,000 releases at δ = 1e-5
and a true shift of .5, 1, 2 and 4 deviations the means are 1.05, 2.35, 4.53 and 7.04, and here
1.05, 2.39, 4.64 and 7.28.

Nothing is asked of the law of the statistic. One threshold may be beyond all releases: then only
one tail is guessed in.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, logit
from scipy.stats import binom

from gradaudit.dp.bounds import LowerBound
from gradaudit.dp.theory import FloatArray

_COST = 0.01
"""Share of α that right guesses which are owed to δ may cost."""


def spared_guesses(releases: int, delta: float, alpha: float) -> tuple[int, float]:
    """How many right guesses are left out for δ, and what is left of α.

    Args:
        releases: under both hypotheses together.
        delta: 0 ≤ δ < 1.
        alpha: error probability of the bound.
    """
    spared = int(binom.isf(_COST * alpha, releases, delta)) if delta else 0
    return spared, alpha - float(binom.sf(spared, releases, delta))


def epsilon_of_guesses(
    right: ArrayLike, wrong: ArrayLike, releases: int, *, delta: float, alpha: float
) -> FloatArray:
    """The bound from numbers of guesses, elementwise, with probability 1 − α.

    Counts need not be whole: an expected count gives the bound to be expected.

    Args:
        right: guesses that were right.
        wrong: guesses that were wrong.
        releases: under both hypotheses together, guessed or not.
        delta: 0 ≤ δ < 1.
        alpha: probability, at most, that the bound exceeds the true epsilon.
    """
    spared, left = spared_guesses(releases, delta, alpha)
    counted = np.asarray(right, float) - spared
    some = counted > 0
    rate = betaincinv(np.where(some, counted, 1.0), np.asarray(wrong, float) + 1, left)
    return np.maximum(np.where(some, logit(rate), 0.0), 0)


def guesses_ceiling(releases: int, *, delta: float, alpha: float) -> float:
    """The bound where every release is guessed, and none wrong: the most that can be shown."""
    return float(epsilon_of_guesses(releases, 0, releases, delta=delta, alpha=alpha))


def tails_bound(
    null: ArrayLike,
    alternative: ArrayLike,
    thresholds: tuple[float, float],
    *,
    delta: float,
    alpha: float = 0.05,
) -> LowerBound:
    """The bound from the releases of one pair, at thresholds fixed without looking at them.

    Args:
        null: statistics of the releases for which the coin picked the null, (trials,).
        alternative: of those for which it picked the alternative, (trials,).
        thresholds: low ≤ high; the null is guessed below the first, the alternative from the second
            on.
        delta: 0 ≤ δ < 1.
        alpha: probability, at most, that the bound exceeds the true epsilon.
    """
    null, alternative = np.asarray(null), np.asarray(alternative)
    low, high = thresholds
    releases = len(null) + len(alternative)
    right = int(np.sum(alternative >= high) + np.sum(null < low))
    wrong = int(np.sum(null >= high) + np.sum(alternative < low))
    value = epsilon_of_guesses(right, wrong, releases, delta=delta, alpha=alpha)
    spared, _ = spared_guesses(releases, delta, alpha)
    return LowerBound(
        value=float(value),
        ceiling=guesses_ceiling(releases, delta=delta, alpha=alpha),
        method="two-tailed guesses",
        thresholds=thresholds,
        flawless=wrong == 0 < right,
        evidence={"guesses": right + wrong, "wrong": wrong, "spared_for_delta": spared},
    )
