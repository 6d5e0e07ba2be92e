"""Rows of one training with canaries: bounds and an estimate of the whole run's epsilon.

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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue
from scipy.special import bdtrc, expit, ndtr, ndtri

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.epsilon_rows import UNLIKELY
from gradaudit.audits.dp_audit.law.estimates import GaussianBound, gaussian_bound
from gradaudit.audits.dp_audit.law.theory import FloatArray, epsilon_composed, epsilon_gaussian
from gradaudit.audits.rows import Rows
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.federation.canaries import CanaryScores, Unit
from gradaudit.report import Measurement

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
LIMITS = (
    "A bound that is not exceeded proves no privacy: it speaks of clients of random directions, "
    "identified by the sum of their cosines with the released means, and cannot rise above "
    "its ceiling."
)
_IF_GAUSSIAN = "holds only if the run's trade-off is that of a Gaussian mechanism"
_IF_NORMAL = "holds only if all else in the released means is normal and alike for all canaries"
_BY_ITSELF = "by itself: of the largest of the three bounds only {:.0%} is promised"
_BOUNDS = 3
_NO_BOUND = "of the canaries' mean shift over its deviation; no bound"
_NO_SPREAD = "the cosines of all canaries are the same"
_NOT_NORMAL = "the sums of the canaries' cosines are not normally distributed"
_OTHERS = ("epsilon_pair", "epsilon_theory", "epsilon_classical", "canary_gap")
_OF_RECORDS = (
    "A bound that is not exceeded proves no privacy: it speaks of records of known gradients in a "
    "run whose other records are known, and cannot rise above its ceiling."
)
_NO_PAIR = "one run plays no pair of values, and its promise is not known"


@dataclass(frozen=True)
class CanaryGuesses:
    """Number of guesses about canaries, and of right ones."""

    canaries: int
    made: int
    right: int


@dataclass(frozen=True)
class OneRunBound:
    """A lower bound on ε, with the guesses that it rests on."""

    value: float
    guesses: CanaryGuesses


def p_value(guesses: CanaryGuesses, epsilon: float, delta: float) -> float:
    """Bound the probability of so many right guesses if the run is (ε, δ)-private."""
    right, rate = guesses.right, expit(epsilon)
    tails = _at_least(right - np.arange(right + 1), guesses.made, rate)
    more = (tails[1:] - tails[0]) / np.arange(1, right + 1)
    owed = 2 * guesses.canaries * delta * float(more.max(initial=0.0))
    return min(float(tails[0]) + owed, 1.0)


@cache
def epsilon_one_run(guesses: CanaryGuesses, *, delta: float, alpha: float) -> float:
    """Bound ε from guesses made without the coins, at 0 ≤ δ < 1, with probability 1 − α."""
    return _largest(lambda epsilon: p_value(guesses, epsilon, delta) < alpha)


def mu_one_run(guesses: CanaryGuesses, *, alpha: float) -> float:
    """Bound μ from below if the trade-off is Gaussian, with probability 1 − α."""
    return _largest(lambda mu: _refuted(guesses, mu, alpha))


@cache
def epsilon_one_run_gaussian(guesses: CanaryGuesses, *, delta: float, alpha: float) -> float:
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


def one_run_bounds(
    scores: FloatArray,
    included: NDArray[np.bool_],
    *,
    delta: float,
    alpha: float,
    unit: Unit = "client",
) -> tuple[OneRunBound, OneRunBound]:
    """Compute two bounds from scores, for any run and for a Gaussian one, each at 1 − α.

    Scores of canary records are logarithms of likelihood ratios, those of clients any number.

    Raises:
        NotApplicable: too few canaries are in, or out.
    """
    expect(included)
    if unit == "record":
        tried = [certain_guesses(scores, included)]
    else:
        tried = [guessed(scores, included, share) for share in SHARES]
    each = alpha / len(tried)
    plain = [OneRunBound(epsilon_one_run(g, delta=delta, alpha=each), g) for g in tried]
    sharper = [OneRunBound(epsilon_one_run_gaussian(g, delta=delta, alpha=each), g) for g in tried]
    return max(plain, key=lambda bound: bound.value), max(sharper, key=lambda bound: bound.value)


def one_run_ceiling(canaries: int, *, delta: float, alpha: float, unit: Unit = "client") -> float:
    """Compute the largest possible bound of so many canaries: no guess is wrong."""
    made, tried = (certain_count(canaries), 1) if unit == "record" else (canaries, len(SHARES))
    return epsilon_one_run(CanaryGuesses(canaries, made, made), delta=delta, alpha=alpha / tried)


def expect(included: NDArray[np.bool_]) -> None:
    """Raise a UsageError where too few canaries are in, or out.

    Raises:
        NotApplicable: too few.
    """
    fewest = int(min(included.sum(), (~included).sum()))
    if fewest < FEWEST:
        raise NotApplicable(
            f"only {fewest} of {len(included)} canaries are on one side; {FEWEST} are needed on "
            "each: train with more --canaries"
        )


def _at_least(counts: ArrayLike, trials: int, rate: float) -> FloatArray:
    """Compute P(Bin ≥ count), elementwise."""
    counts = np.asarray(counts, float)
    tails = bdtrc(np.maximum(counts - 1, 0), trials, rate)
    return np.asarray(np.where(counts <= 0, 1.0, tails))


def _refuted(guesses: CanaryGuesses, mu: float, alpha: float) -> bool:
    made, right, canaries = guesses.made, guesses.right, guesses.canaries
    r, h = alpha * right / canaries, alpha * (made - right) / canaries
    for i in range(right - 1, -1, -1):
        higher = max(h, float(ndtr(ndtri(r) - mu)))
        if higher == h:
            break
        r, h = min(r + i / (made - i) * (higher - h), 1.0), higher
    return r + h > made / canaries


def _largest(refuted: Callable[[float], bool]) -> float:
    """Find the largest refuted number by bisection; 0 where none is refuted."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, _HIGHEST
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def of_a_run(scores: CanaryScores) -> dict[str, str]:
    """Describe a run's unit of privacy and its relation of neighbours."""
    return {"unit": scores.unit, "relation": "remove"}


def one_run_rows(
    options: DpAuditOptions, scores: CanaryScores, rows: Rows
) -> Iterator[Measurement]:
    """Yields the bound with the claim, then the bound for Gaussian noise, then the estimate.

    Raises:
        UsageError: no run is named, or the option is of another mode.
        CheckpointError: the run has no canaries, or their file is damaged.
        NotApplicable: there are too few.
    """
    expect(scores.included)
    totals, alpha = scores.cosines.sum(axis=0), 1 - options.confidence
    level = {"delta": options.delta, "alpha": alpha}
    plain, sharper = one_run_bounds(totals[:, 0], scores.included, **level, unit=scores.unit)
    rows = rows.of({}, _facts(scores, options))
    yield _headline(plain, scores, options, rows)
    yield rows.measured(
        "epsilon_lower_gaussian",
        sharper.value,
        n=len(totals),
        confidence=options.confidence,
        details={
            "estimator": "f-dp",
            "remark": f"{_IF_GAUSSIAN}, and {_by_itself(options)}",
            **_guesses(sharper),
        },
    )
    yield from _of_shift(_shift(totals[:, 0], scores.included, options), options, rows)
    ceiling = one_run_ceiling(len(totals), **level, unit=scores.unit)
    yield rows.measured("epsilon_ceiling", ceiling, n=len(totals))
    promise = promised(scores, options.delta)
    if promise is not None:
        yield rows.measured("epsilon_theory", promise, details=scores.facts)
    unknown = (name for name in _OTHERS if promise is None or name != "epsilon_theory")
    yield from rows.skipped(_NO_PAIR, list(unknown))


def recorded_scores(options: DpAuditOptions) -> CanaryScores:
    """Read the scores that a training with canaries left in its folder.

    Raises:
        UsageError: no folder is named.
        CheckpointError: it has no scores, or they are damaged.
        NotApplicable: no round was trained yet.
    """
    if options.canaries is None:
        raise UsageError(
            "--mode one-run: name the folder of a training with --canaries RUN, or train here with "
            "--mechanism opacus:clip=C,sigma=S --steps T"
        )
    scores = CanaryScores.read(options.canaries)
    if not len(scores.cosines):
        raise NotApplicable(f"{options.canaries}: no round was trained yet")
    return scores


def promised(scores: CanaryScores, delta: float) -> float | None:
    """Compute the epsilon that a run's noise multiplier, sampling rate and steps promise."""
    if not scores.facts:
        return None
    multiplier, rate = (
        float(str(scores.facts[key])) for key in ("noise_multiplier", "sampling_rate")
    )
    steps = max(1, len(scores.cosines))
    return epsilon_composed(multiplier, steps, delta, sampling_rate=rate, relation="remove")


def _facts(scores: CanaryScores, options: DpAuditOptions) -> dict[str, JsonValue]:
    return {
        "secret": f"a {scores.unit}'s presence",
        "mode": options.mode,
        "delta": options.delta,
        **of_a_run(scores),
        "rounds": len(scores.cosines),
        "canaries": len(scores.included),
        "included": int(scores.included.sum()),
    }


def _headline(
    bound: OneRunBound, scores: CanaryScores, options: DpAuditOptions, rows: Rows
) -> Measurement:
    shifts = dict(_by_layer(scores))
    limits = LIMITS if scores.unit == "client" else _OF_RECORDS
    by_round = [_standing_out(cosines[:, 0], scores.included) for cosines in scores.cosines]
    details: dict[str, JsonValue] = {
        "estimator": "one-run",
        **_guesses(bound),
        "shift_by_layer": dict[str, JsonValue](shifts),
        "shift_by_round": list[JsonValue](by_round),
        "limits": limits,
        "remark": limits,
        **_suspected(scores, bound.value, options.delta),
    }
    if (claimed := options.claimed_epsilon) is not None:
        details |= {"claimed": claimed, "exceeded": bound.value > claimed}
        said = "exceeded" if bound.value > claimed else "not exceeded by this run"
        details["remark"] = f"The claim of {claimed:g} is {said}. {limits}"
    n = len(scores.included)
    return rows.measured(
        "epsilon_lower", bound.value, n=n, confidence=options.confidence, details=details
    )


def _suspected(scores: CanaryScores, bound: float, delta: float) -> dict[str, JsonValue]:
    """List the accountant's assumptions that the run contradicts."""
    said, promise = scores.facts.get("suspicions"), promised(scores, delta)
    found = [str(each) for each in said] if isinstance(said, list) else []
    if promise is not None and bound > promise:
        found.insert(0, f"the run promises an epsilon of {promise:.3g}, and exceeds it")
    return {"warning": "; ".join(found)} if found else {}


def _guesses(bound: OneRunBound) -> dict[str, JsonValue]:
    return {"guesses": bound.guesses.made, "right": bound.guesses.right}


def _by_itself(options: DpAuditOptions) -> str:
    return _BY_ITSELF.format(max(1 - _BOUNDS * (1 - options.confidence), 0.0))


def _of_shift(
    bound: GaussianBound | None, options: DpAuditOptions, rows: Rows
) -> Iterator[Measurement]:
    mean = rows.of({"estimator": "mean shift"})
    if bound is None or bound.normality_p < UNLIKELY:
        why = _NO_SPREAD if bound is None else f"{_NOT_NORMAL} (p = {bound.normality_p:.1g})"
        yield from mean.skipped(why, ["epsilon_lower_gaussian"])
        yield from rows.skipped(why, ["mu_lower", "epsilon_point"])
        return
    details: dict[str, JsonValue] = {
        "mu_estimate": bound.mu_estimate,
        "normality_p": bound.normality_p,
        "equal_variance_p": bound.equal_variance_p,
        "remark": f"{_IF_NORMAL}, and {_by_itself(options)}",
    }
    level = options.confidence
    yield mean.measured("epsilon_lower_gaussian", bound.epsilon, confidence=level, details=details)
    yield rows.measured("mu_lower", bound.mu, confidence=level, details=details)
    estimate = epsilon_gaussian(max(bound.mu_estimate, 0.0), options.delta)
    remark: dict[str, JsonValue] = {"is_a_bound": False, "remark": _NO_BOUND}
    yield rows.measured("epsilon_point", estimate, details={**details, **remark})


def _shift(
    totals: NDArray[np.float64], included: NDArray[np.bool_], options: DpAuditOptions
) -> GaussianBound | None:
    groups = totals[~included], totals[included]
    if not any(group.std() for group in groups):
        return None
    return gaussian_bound(*groups, delta=options.delta, alpha=1 - options.confidence)


def _by_layer(scores: CanaryScores) -> Iterator[tuple[str, float]]:
    totals = scores.cosines.sum(axis=0)
    for block, layer in enumerate(scores.layers, start=1):
        yield layer, _standing_out(totals[:, block], scores.included)


def _standing_out(values: NDArray[np.float64], included: NDArray[np.bool_]) -> float:
    """Compute by how many deviations the included canaries' mean exceeds the others'."""
    inside, outside = values[included], values[~included]
    spread = np.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
    return float((inside.mean() - outside.mean()) / spread) if spread else 0.0
