"""Bounds on the whole epsilon of one training with canaries, from guesses about them.

Canaries j = 1 … m are in a run or not as independent fair coins say; everything else is as it is.
From what the run gave out, guesses are made about r of them, of which v are right. No coin is
looked at for which are guessed about.

**Bound.** If the run is (ε, δ)-private with respect to each canary, then W right guesses have

    P(W ≥ v) ≤ β + 2mδ · max_{1≤i≤v} P(v > B ≥ v − i)/i,  β = P(B ≥ v),  B ~ Bin(r, e^ε/(1 + e^ε)).

An ε at which the right side is below α is refuted, and all smaller ones are, whose promises are
stronger: the largest that is refuted is a lower bound at 1 − α. (T.
Steinke, M. Nasr and M. Jagielski, "Privacy auditing with one (1) training run" (2023), theorem 5.2,
with a level of 1/2 for each coin.)

**Sharper, if the trade-off is Gaussian.** Of a mechanism whose trade-off curve between a canary's
absence and presence is f_μ(x) = Φ(Φ⁻¹(1 − x) − μ), the right and wrong guesses obey a recursion in
f_μ alone: with r_v = αv/m and h_v = α(r − v)/m, for i from v − 1 down to 0

    h_i = max(h_{i+1}, Φ(Φ⁻¹(r_{i+1}) − μ)),   r_i = r_{i+1} + i/(r − i) · (h_i − h_{i+1}),

and μ is refuted where r_0 + h_0 > r/m. (S. Mahloujifar, L. Melis and K. Chaudhuri, "Auditing
f-differential privacy in one run" (2024), algorithm 3.) It is a bound for Gaussian mechanisms, also
composed, and for no other.

**An estimate.** Inner products of releases with random directions are normal; those of canaries
that are in are shifted by μ of their deviations. ε(μ̂, δ) of the two means is an estimate and no
bound (G. Andrew et al., "One-shot empirical privacy estimation for federated learning" (2024),
section 3); the lower end of μ's interval is one if all else in the releases is Gaussian.

All three agree with ``jax_privacy.auditing`` on the same guesses
(``tests/audits/dp_audit/law/test_one_run.py``).
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue
from scipy.special import bdtrc, expit, ndtr, ndtri

from gradaudit.audits.dp_audit.law.theory import FloatArray, epsilon_gaussian
from gradaudit.errors import NotApplicable
from gradaudit.federation.canaries import Unit

SHARES = (1.0, 0.5, 0.25, 0.125)
"""Shares of the canaries of clients that are guessed about; the best counts, with α divided by how
many there are."""
CERTAIN, LEAST_GUESSES, MOST_SHARE = 0.036, 60, 0.4
"""Share of the canary records that are guessed about, the fewest guesses, and the largest share.

A single share needs no division of α. Of 30 to 1,920 guesses about 100 to 30,000 canaries this
share gave the highest least bound of 16 seeds, drawn from the law of the scores at a truth of 4.38,
7.05 and 9.97; of few canaries about 60 guesses did."""
FEWEST = 20
"""Fewest included canaries, and fewest excluded ones, from which a bound is computed."""
_HIGHEST = 100.0
_BISECTIONS = 45


class CanaryGuesses(NamedTuple):
    """Number of guesses about canaries, and of right ones."""

    canaries: int
    made: int
    right: int


class OneRunBound(NamedTuple):
    """A lower bound on ε, with the guesses that it rests on."""

    value: float
    guesses: CanaryGuesses

    @property
    def counts(self) -> dict[str, JsonValue]:
        """Numbers of guesses and of right ones, for a report."""
        return {"guesses": self.guesses.made, "right": self.guesses.right}


def p_value(guesses: CanaryGuesses, epsilon: float, delta: float) -> float:
    """Bound the probability of so many right guesses if the run is (ε, δ)-private."""
    right = guesses.right
    counts = right - np.arange(right + 1)  # P(Bin ≥ count) of each
    tails = bdtrc(np.maximum(counts - 1.0, 0), guesses.made, expit(epsilon))
    tails = np.where(counts <= 0, 1.0, tails)
    more = (tails[1:] - tails[0]) / np.arange(1, right + 1)
    owed = 2 * guesses.canaries * delta * float(more.max(initial=0.0))
    return min(float(tails[0]) + owed, 1.0)


@cache
def epsilon_of_canaries(guesses: CanaryGuesses, *, delta: float, alpha: float) -> float:
    """Bound ε from guesses made without the coins, at 0 ≤ δ < 1, with probability 1 − α."""
    return _largest_refuted(lambda epsilon: p_value(guesses, epsilon, delta) < alpha)


def mu_one_run(guesses: CanaryGuesses, *, alpha: float) -> float:
    """Bound μ from below if the trade-off is Gaussian, with probability 1 − α."""
    made, right, canaries = guesses.made, guesses.right, guesses.canaries

    def refuted(mu: float) -> bool:
        r, h = alpha * right / canaries, alpha * (made - right) / canaries
        for i in range(right - 1, -1, -1):
            higher = max(h, float(ndtr(ndtri(r) - mu)))
            if higher == h:
                break
            r, h = min(r + i / (made - i) * (higher - h), 1.0), higher
        return r + h > made / canaries

    return _largest_refuted(refuted)


@cache
def epsilon_of_canaries_gaussian(guesses: CanaryGuesses, *, delta: float, alpha: float) -> float:
    """Bound ε from below if the trade-off is Gaussian, at 0 < δ < 1, with probability 1 − α."""
    return epsilon_gaussian(mu_one_run(guesses, alpha=alpha), delta)


def guessed(scores: FloatArray, included: NDArray[np.bool_], share: float) -> CanaryGuesses:
    """Guess the highest scores to be in and as many of the lowest to be out, half each.

    Of (canaries,) scores, which are higher of those that are in, and what their coins said.
    """
    side = int(share * len(scores) / 2)
    order = np.argsort(scores, kind="stable")
    right = int(included[order[len(order) - side :]].sum() + (~included[order[:side]]).sum())
    return CanaryGuesses(len(scores), 2 * side, right)


def certain_guesses(ratios: FloatArray, included: NDArray[np.bool_]) -> CanaryGuesses:
    """Guess by the signs of the largest log-likelihood ratios (canaries,) in size."""
    count = certain_count(len(ratios))
    chosen = np.argsort(-np.abs(ratios), kind="stable")[:count]
    right = int(((ratios > 0) == included)[chosen].sum())
    return CanaryGuesses(len(ratios), count, right)


def certain_count(canaries: int) -> int:
    """Choose how many canaries are guessed about, before any score is seen."""
    return int(min(MOST_SHARE * canaries, max(LEAST_GUESSES, CERTAIN * canaries)))


def epsilon_one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    alpha: float,
    unit: Unit = "client",
) -> tuple[OneRunBound, OneRunBound]:
    """Lower-bound the epsilon of one training from its canaries' scores.

    Two bounds at 1 − α, of which the second needs a Gaussian trade-off: the largest ε at which so
    many right guesses have a probability of α at most (Steinke, Nasr and Jagielski 2023, theorem
    5.2), and the same of μ (Mahloujifar, Melis and Chaudhuri 2024, algorithm 3).

    >>> included = np.arange(400) % 2 == 0
    >>> plain, gaussian = epsilon_one_run(1.0 * included, included, delta=1e-5, alpha=0.05)
    >>> round(plain.value, 3), round(gaussian.value, 3), plain.guesses.right
    (4.487, 8.61, 400)

    Args:
        scores: (canaries,) higher of those that are in; of canary records the logarithms of
            likelihood ratios.
        included: (canaries,) what the fair coins said.
        delta: δ, 0 < δ < 1.
        alpha: probability, at most, that a bound exceeds the true epsilon.
        unit: what a canary is; records are guessed about by the sign of their scores.

    Raises:
        NotApplicable: too few canaries are in, or out.
    """
    scores, included = np.asarray(scores), np.asarray(included)
    _expect_canaries(included)
    if unit == "record":
        tried = [certain_guesses(scores, included)]
    else:
        tried = [guessed(scores, included, share) for share in SHARES]
    each = alpha / len(tried)
    plain = [OneRunBound(epsilon_of_canaries(g, delta=delta, alpha=each), g) for g in tried]
    sharper = [
        OneRunBound(epsilon_of_canaries_gaussian(g, delta=delta, alpha=each), g) for g in tried
    ]
    return max(plain, key=lambda bound: bound.value), max(sharper, key=lambda bound: bound.value)


def one_run_ceiling(canaries: int, *, delta: float, alpha: float, unit: Unit = "client") -> float:
    """Compute the largest possible bound of so many canaries: no guess is wrong."""
    made, tried = (certain_count(canaries), 1) if unit == "record" else (canaries, len(SHARES))
    return epsilon_of_canaries(
        CanaryGuesses(canaries, made, made), delta=delta, alpha=alpha / tried
    )


def _expect_canaries(included: NDArray[np.bool_]) -> None:
    """Refuse a run with too few canaries that were in the training, or out of it.

    Raises:
        NotApplicable: too few are in, or out.
    """
    fewest = int(min(included.sum(), (~included).sum()))
    if fewest < FEWEST:
        raise NotApplicable(
            f"only {fewest} of {len(included)} canaries are on one side; {FEWEST} are needed on "
            "each: train with more --canaries"
        )


def _largest_refuted(refuted: Callable[[float], bool]) -> float:
    """Find the largest refuted number by bisection; 0 where none is refuted."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, _HIGHEST
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
