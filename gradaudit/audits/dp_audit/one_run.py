"""Rows of one training with canaries: bounds and an estimate of the whole run's epsilon."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.law.estimates import GaussianBound, gaussian_bound
from gradaudit.audits.dp_audit.law.one_run_bounds import (
    OneRunBound,
    expect,
    one_run_bounds,
    one_run_ceiling,
)
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.audits.dp_audit.rows import UNLIKELY
from gradaudit.audits.rows import Rows
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.federation.canary_scores import CanaryScores
from gradaudit.report import Measurement

LIMITS = (
    "A bound that is not exceeded proves no privacy: it speaks of clients of random directions, "
    "told by the sum of their cosines with the released means, and cannot rise above its ceiling."
)
_IF_GAUSSIAN = "holds only if the run's trade-off is that of a Gaussian mechanism"
_IF_NORMAL = "holds only if all else in the released means is normal and alike for all canaries"
_BY_ITSELF = "by itself: of the largest of the three bounds only {:.0%} is promised"
_BOUNDS = 3
_NO_BOUND = "of the canaries' mean shift over its deviation; no bound"
_NO_SPREAD = "the cosines of all canaries are the same"
_NOT_NORMAL = "the sums of the canaries' cosines are not normally distributed"
_OTHERS = ("epsilon_pair", "epsilon_theory", "epsilon_classical", "canary_gap")
OF_A_RUN = {"unit": "client", "relation": "remove"}
_SECRET = "a client's presence"
_NO_PAIR = "one run plays no pair of values, and its promise is not known"


def one_run_rows(options: DpAuditOptions, rows: Rows) -> Iterator[Measurement]:
    """The bound first, with the claim; then what holds for Gaussian runs, and the estimate.

    Raises:
        UsageError: no run is named, or the option is of another mode.
        CheckpointError: the run has no canaries, or their file is damaged.
        NotApplicable: there are too few.
    """
    scores = _scores(options)
    totals, alpha = scores.cosines.sum(axis=0), 1 - options.confidence
    plain, sharper = one_run_bounds(totals[:, 0], scores.included, delta=options.delta, alpha=alpha)
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
    ceiling = one_run_ceiling(len(totals), delta=options.delta, alpha=alpha)
    yield rows.measured("epsilon_ceiling", ceiling, n=len(totals))
    yield from rows.skipped(_NO_PAIR, _OTHERS)


def _scores(options: DpAuditOptions) -> CanaryScores:
    if options.canaries is None:
        raise UsageError("--mode one-run: name the folder of a training with --canaries RUN")
    if options.mechanism is not None:
        raise UsageError("--mechanism: is of the other modes; --mode one-run audits a training")
    scores = CanaryScores.read(options.canaries)
    if not len(scores.cosines):
        raise NotApplicable(f"{options.canaries}: no round was trained yet")
    expect(scores.included)
    return scores


def _facts(scores: CanaryScores, options: DpAuditOptions) -> dict[str, JsonValue]:
    return {
        "secret": _SECRET,
        "mode": options.mode,
        "delta": options.delta,
        **OF_A_RUN,
        "rounds": len(scores.cosines),
        "canaries": len(scores.included),
        "included": int(scores.included.sum()),
    }


def _headline(
    bound: OneRunBound, scores: CanaryScores, options: DpAuditOptions, rows: Rows
) -> Measurement:
    shifts = dict(_by_layer(scores))
    by_round = [_standing_out(cosines[:, 0], scores.included) for cosines in scores.cosines]
    details: dict[str, JsonValue] = {
        "estimator": "one-run",
        **_guesses(bound),
        "shift_by_layer": dict[str, JsonValue](shifts),
        "shift_by_round": list[JsonValue](by_round),
        "limits": LIMITS,
        "remark": LIMITS,
    }
    if (claimed := options.claimed_epsilon) is not None:
        details |= {"claimed": claimed, "exceeded": bound.value > claimed}
        said = "exceeded" if bound.value > claimed else "not exceeded by this run"
        details["remark"] = f"The claim of {claimed:g} is {said}. {LIMITS}"
    n = len(scores.included)
    return rows.measured(
        "epsilon_lower", bound.value, n=n, confidence=options.confidence, details=details
    )


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
    """How many deviations the mean of the canaries that are in lies above that of the others."""
    inside, outside = values[included], values[~included]
    spread = np.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
    return float((inside.mean() - outside.mean()) / spread) if spread else 0.0
