"""Lower bounds on epsilon: from the errors of one test, and from guesses in both tails.

Thresholds are fixed before the trials.

**Errors of one test.** A test that answers "alternative" where its statistic is at least a
threshold has false positive rate p = P₀(t ≥ τ) and false negative rate q = P₁(t < τ). If the
mechanism is (ε, δ)-private for the pair, then P₁(S) ≤ e^ε P₀(S) + δ and P₀(S) ≤ e^ε P₁(S) + δ for
every event S, and S = {t ≥ τ} and S = {t < τ} give

    ε ≥ ln((1 − δ − q) / p)    and    ε ≥ ln((1 − δ − p) / q).            (Kairouz et al. 2015)

**Why the bound is valid.** With τ fixed before the trials, the error counts are binomial, so each
one-sided Clopper–Pearson limit at α/2 lies below its rate with probability at most α/2, and both
lie above with probability at least 1 − α, whether or not the two counts are independent. On that
one event both expressions, which fall in p and in q, can only shrink when the limits take the
rates' place. The larger of the two, and 0, are then below ε as well: taking the maximum costs
nothing. Nothing is asked of the law of the statistic; ties and discrete statistics are covered by
the convention ≥.

A limit is never 0, so the bound is never infinite: its ceiling, reached without any error, is
ln((1 − δ − u)/u) with u = 1 − (α/2)^(1/N).

**Guesses in both tails.** For every release a fair coin of its own picks the hypothesis. With two
thresholds low ≤ high, a release t ≥ high is guessed to come from the alternative, one t < low from
the null, and nothing is said between. With the events A = {t ≥ high} and B = {t < low}, a release
is guessed right with probability c and wrong with probability w,

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

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtrc, betaincinv, logit

from gradaudit.audits.dp_audit.law.theory import FloatArray
from gradaudit.core.statistics.intervals import clopper_pearson_upper

Direction = Literal["false positives", "false negatives"]
"""Which error rate stands in the denominator."""
Method = Literal["clopper-pearson", "two-tailed guesses"]
"""How a bound is had from releases."""
_COST = 0.01
"""Share of α that right guesses which are owed to δ may cost."""


class LowerBound(NamedTuple):
    """A lower bound on epsilon, and what it rests on.

    0 ≤ value ≤ ceiling, which is what these trials could have shown at most, without a single
    error. "null" is answered below the lower threshold, "alternative" from the higher on;
    ``flawless`` is one without an error that counts: epsilon is at least the value. Evidence are
    the counts that it rests on.
    """

    value: float
    ceiling: float
    method: Method
    thresholds: tuple[float, float]
    flawless: bool
    evidence: Mapping[str, int | str]


def epsilon_of_rates(denominator: ArrayLike, other: ArrayLike, delta: float) -> FloatArray:
    """Compute max(0, ln((1 − δ − other)/denominator)), elementwise."""
    gain = np.maximum(1 - delta - np.asarray(other, float), 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilon = np.log(gain / np.asarray(denominator, float))
    return np.maximum(np.where(gain > 0, epsilon, 0.0), 0)


def epsilon_by_direction(
    false_positives: ArrayLike,
    false_negatives: ArrayLike,
    trials: int | tuple[int, int],
    *,
    delta: float,
    alpha: float,
) -> tuple[FloatArray, FloatArray]:
    """Compute both directions' bounds from error counts; both hold with probability 1 − α.

    Counts need not be whole: an expected count gives the bound to be expected. ``trials`` are the
    releases under each hypothesis, or under the one and the other; 0 ≤ δ < 1, and α is the error
    probability of both together. The false positives stand in the first's denominator, the false
    negatives in the second's.
    """
    of_null, of_alternative = trials if isinstance(trials, tuple) else (trials, trials)
    rates = (
        clopper_pearson_upper(false_positives, of_null, alpha / 2),
        clopper_pearson_upper(false_negatives, of_alternative, alpha / 2),
    )
    return epsilon_of_rates(*rates, delta), epsilon_of_rates(*rates[::-1], delta)


def epsilon_of_errors(
    false_positives: ArrayLike,
    false_negatives: ArrayLike,
    trials: int | tuple[int, int],
    *,
    delta: float,
    alpha: float,
) -> FloatArray:
    """Compute the larger bound of both directions, elementwise, with probability 1 − α."""
    both = epsilon_by_direction(false_positives, false_negatives, trials, delta=delta, alpha=alpha)
    return np.maximum(*both)


def epsilon_ceiling(trials: int | tuple[int, int], *, delta: float, alpha: float) -> float:
    """Compute the bound that trials without a single error give."""
    return float(epsilon_of_errors(0, 0, trials, delta=delta, alpha=alpha))


def count_errors(
    null: ArrayLike, alternative: ArrayLike, threshold: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """False positives and false negatives of the test t ≥ τ.

    Of statistics (..., trials) under each hypothesis and thresholds τ (...) two arrays of counts,
    (...).
    """
    tau = np.asarray(threshold, float)[..., np.newaxis]
    return (
        np.asarray(np.count_nonzero(np.asarray(null) >= tau, axis=-1)),
        np.asarray(np.count_nonzero(~(np.asarray(alternative) >= tau), axis=-1)),
    )


def epsilon_lower(
    null: ArrayLike, alternative: ArrayLike, threshold: float, *, delta: float, alpha: float = 0.05
) -> LowerBound:
    """Lower-bound epsilon by Clopper–Pearson limits of one test's errors.

    ε ≥ max(ln((1 − δ − q)/p), ln((1 − δ − p)/q)), with p and q the upper limits at 1 − α/2 of the
    rates of false positives and false negatives (Kairouz, Oh and Viswanath 2015, theorem 2.1;
    Clopper and Pearson 1934). It holds whatever decided under which hypothesis a release is made,
    as long as that is independent of the releases: given those choices, both counts are binomial.

    >>> bound = epsilon_lower([0.0] * 500, [1.0] * 500, 0.5, delta=1e-5)
    >>> round(bound.value, 4), bound.flawless
    (4.9056, True)

    Args:
        null: (trials,) statistics of the releases under the null hypothesis.
        alternative: (trials,) those under the alternative, perhaps of another number.
        threshold: fixed before the trials: from the known law or from other releases
            (``pilot_threshold``); the alternative is answered from it on.
        delta: δ, 0 ≤ δ < 1.
        alpha: probability, at most, that the bound exceeds the true epsilon.

    Raises:
        ValueError: no trials under a hypothesis, a statistic that is not a number, or a parameter
            out of its range.
    """
    trials = len(np.asarray(null)), len(np.asarray(alternative))
    if not min(trials):
        raise ValueError("epsilon_lower needs trials under both hypotheses")
    if any(np.isnan(np.asarray(each)).any() for each in (null, alternative)):
        raise ValueError("epsilon_lower needs statistics without NaN")
    if not (0 <= delta < 1 and 0 < alpha < 1):
        raise ValueError("epsilon_lower needs 0 <= delta < 1 and 0 < alpha < 1")
    positives, negatives = map(int, count_errors(null, alternative, threshold))
    both = epsilon_by_direction(positives, negatives, trials, delta=delta, alpha=alpha)
    by_positives, by_negatives = map(float, both)
    direction: Direction = "false positives" if by_positives >= by_negatives else "false negatives"
    errors = {"false_positives": positives, "false_negatives": negatives}
    return LowerBound(
        value=max(by_positives, by_negatives),
        ceiling=epsilon_ceiling(trials, delta=delta, alpha=alpha),
        method="clopper-pearson",
        thresholds=(float(threshold), float(threshold)),
        flawless=positives == 0 == negatives,
        evidence={**errors, "direction": direction},
    )


def spared_guesses(releases: int, delta: float, alpha: float) -> tuple[int, float]:
    """Compute how many right guesses δ may account for, and the α that remains.

    Of the releases under both hypotheses together, for a bound of error probability α at 0 ≤ δ < 1.
    """
    from scipy.stats import binom  # a second that other audits need not wait

    spared = int(binom.isf(_COST * alpha, releases, delta)) if delta else 0
    return spared, alpha - float(bdtrc(spared, releases, delta))


def epsilon_of_guesses(
    right: ArrayLike, wrong: ArrayLike, releases: int, *, delta: float, alpha: float
) -> FloatArray:
    """Compute the bound from numbers of guesses, elementwise, with probability 1 − α.

    Counts need not be whole: an expected count gives the bound to be expected. ``releases`` are
    those under both hypotheses together, guessed or not; 0 ≤ δ < 1, and α is the probability, at
    most, that the bound exceeds the true epsilon.
    """
    spared, left = spared_guesses(releases, delta, alpha)
    counted = np.asarray(right, float) - spared
    some = counted > 0
    rate = betaincinv(np.where(some, counted, 1.0), np.asarray(wrong, float) + 1, left)
    return np.maximum(np.where(some, logit(rate), 0.0), 0)


def guesses_ceiling(releases: int, *, delta: float, alpha: float) -> float:
    """Compute the largest possible bound: every release is guessed, and none wrongly."""
    return float(epsilon_of_guesses(releases, 0, releases, delta=delta, alpha=alpha))


def epsilon_two_tailed(
    null: ArrayLike,
    alternative: ArrayLike,
    thresholds: tuple[float, float],
    *,
    delta: float,
    alpha: float = 0.05,
) -> LowerBound:
    """Lower-bound epsilon by guesses in both tails, with abstention between.

    The largest ε at which P(Bin(r, e^ε/(1 + e^ε)) ≥ v) ≤ α, for v of r guesses right, with a term
    for δ (Steinke, Nasr and Jagielski 2023, theorem 5.2).

    >>> bound = epsilon_two_tailed([-3.0] * 500, [3.0] * 500, (-1.0, 1.0), delta=0)
    >>> round(bound.value, 4), bound.evidence["guesses"]
    (5.8091, 1000)

    Args:
        null: (trials,) statistics of the releases for which a fair coin picked the null.
        alternative: (trials,) those of the others.
        thresholds: low ≤ high, fixed before the trials: the null is guessed below the first, the
            alternative from the second on.
        delta: δ, 0 ≤ δ < 1.
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
