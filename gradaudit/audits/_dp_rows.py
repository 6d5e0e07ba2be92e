"""Rows of the dp-audit from a played game; their details say what the numbers rest on."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from gradaudit.audits._dp_claim import with_claim
from gradaudit.audits._dp_options import DpAuditOptions
from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.dp.campaign import Game
    from gradaudit.dp.game import Outcome, Score
    from gradaudit.dp.gaussian import GaussianBound
    from gradaudit.dp.mechanisms import Mechanism
    from gradaudit.dp.verdicts import Verdict

BINS = 40
UNLIKELY = 1e-4
"""A p-value below this says that the noise is not what it is declared to be."""
NO_BOUND = "the paper's estimate, from the best threshold on the same trials; no bound"
IF_GAUSSIAN = "holds only if the noise is Gaussian, as it is declared to be"
PROVEN_BY_TRIALS = ("epsilon_lower_gaussian", "mu_lower", "epsilon_point")
DEPENDENT = (
    "the releases depend on each other (p <= 0.001), as of a mechanism that carries noise or state "
    "from one to the next, so nothing bounds the epsilon of one; audit it with fresh state for "
    "each release"
)


def row(metric: str, value: float, variant: Variant, **more: Any) -> Measurement:
    """A measured row; infinity is told in its details."""
    details: dict[str, JsonValue] = dict(more.pop("details", {}))
    if math.isinf(value):
        details["infinite"] = True
    finite = None if math.isinf(value) else value
    return Measurement(
        audit="dp-audit", metric=metric, variant=variant, value=finite, details=details, **more
    )


def skip(
    metric: str, reason: str, variant: Variant, details: dict[str, JsonValue] | None = None
) -> Measurement:
    """A row that says why nothing was measured."""
    return Measurement(
        audit="dp-audit",
        metric=metric,
        variant=variant,
        status="skipped",
        reason=reason,
        details=details or {},
    )


def game_rows(
    game: "Game", mechanism: "Mechanism", options: DpAuditOptions, base: Variant
) -> Iterator[Measurement]:
    """Every row of one game, the bound first.

    Args:
        game: that was played.
        mechanism: that was audited.
        options: of the audit.
        base: the variant of the game's main rows; empty for the headline.
    """
    for found in _bound_rows(game, mechanism, options, base):
        headline = found.metric == "epsilon_lower" and not found.variant
        yield with_claim(found, game, mechanism, options) if headline else found
    yield row("epsilon_ceiling", game.rules.ceiling, base, n=options.trials)
    yield _pair_row(game, mechanism, options, base)
    yield from _gap_rows(game, base)


def _bound_rows(
    game: "Game", mechanism: "Mechanism", options: DpAuditOptions, base: Variant
) -> Iterator[Measurement]:
    """What trials showed, or why there were none, or none that count."""
    from gradaudit.dp.verdicts import Verdict

    facts = _facts(game, mechanism, options)
    if isinstance(game.result, Verdict):
        yield from _verdict_rows(game.result, facts, options, base)
    elif game.result.dependent:
        for metric in ("epsilon_lower", *PROVEN_BY_TRIALS):
            yield skip(metric, DEPENDENT, base, facts)
    else:
        yield from _outcome_rows(game.result, mechanism, facts, options, base)


def _gap_rows(game: "Game", base: Variant) -> Iterator[Measurement]:
    played, typical = game.contest.played, game.contest.typical
    quartiles = [float(typical[int(q * (len(typical) - 1))]) for q in (0.25, 0.5, 0.75, 1)]
    shared: dict[str, JsonValue] = {"measured_by": game.gaps_from}
    for kind, canary in (("", played), *game.contest.contestants.items()):
        details: dict[str, JsonValue] = {
            **shared,
            "record": canary.kind,
            "null_value": game.column.names[canary.null],
            "alternative_value": game.column.names[canary.alternative],
        }
        if not kind:
            details["quartiles_of_ordinary_records"] = list[JsonValue](quartiles)
        variant = {**base, "record": kind} if kind else base
        yield row("canary_gap", canary.gap, variant, unit="L2 norm", details=details)


def _pair_row(
    game: "Game", mechanism: "Mechanism", options: DpAuditOptions, base: Variant
) -> Measurement:
    if game.pair is None:
        reason = "the law of a mechanism from a file is not known; name it as dp:clip=C,sigma=S"
        return skip("epsilon_pair", reason, base)
    delta = 0.0 if mechanism.noise == "laplace" else options.delta
    return row("epsilon_pair", game.pair, base, details={"delta": delta})


def _facts(game: "Game", mechanism: "Mechanism", options: DpAuditOptions) -> dict[str, JsonValue]:
    """What all bounds of a game rest on."""
    played, names = game.contest.played, game.column.names
    mixture = options.replacement == "uniform"
    return {
        "attribute": game.column.name,
        "null_value": names[played.null],
        "alternative_value": "every other" if mixture else names[played.alternative],
        "record": played.kind,
        "mechanism": mechanism.description,
        "mode": options.mode,
        "delta": options.delta,
        "batch": game.board.records,
        "elements": game.board.elements,
        "comparisons": game.rules.comparisons,
        "unit": "record",
        "relation": "replace",
    }


def _verdict_rows(
    verdict: "Verdict", facts: dict[str, JsonValue], options: DpAuditOptions, base: Variant
) -> Iterator[Measurement]:
    details = {**facts, "analytic": True, "because": verdict.reason}
    if options.picture is not None:
        details["picture"] = "not drawn: decided without trials"
    yield row("epsilon_lower", verdict.epsilon, base, details=details)
    for metric in PROVEN_BY_TRIALS:
        yield skip(metric, f"decided without trials: {verdict.reason}", base)


def _outcome_rows(
    outcome: "Outcome",
    mechanism: "Mechanism",
    facts: dict[str, JsonValue],
    options: DpAuditOptions,
    base: Variant,
) -> Iterator[Measurement]:
    spent = {**facts, "pilots": outcome.pilots, "decided_by": outcome.decided_by}
    asked_first = sorted(outcome.scores.items(), key=lambda item: item[0] != options.statistic)
    for name, score in asked_first:
        chosen = name == options.statistic
        variant: Variant = base if chosen else {**base, "statistic": name}
        yield _bound_row(score, {**spent, "statistic": name}, options, variant)
        yield _point_row(score, options, variant)
    yield from _gaussian_rows(outcome.gaussian, mechanism, options, base)


def _bound_row(
    score: "Score", facts: dict[str, JsonValue], options: DpAuditOptions, variant: Variant
) -> Measurement:
    bound = score.bound
    details = {
        **facts,
        "bound": bound.method,
        "thresholds": list[JsonValue](bound.thresholds),
        **bound.evidence,
        "releases": [len(score.null), len(score.alternative)],
        "ceiling": bound.ceiling,
        "at_ceiling": bound.flawless and bound.value >= bound.ceiling * (1 - 1e-9),
        "histogram": _histogram(score),
    }
    return row(
        "epsilon_lower",
        bound.value,
        variant,
        n=options.trials,
        confidence=options.confidence,
        details=details,
    )


def _point_row(score: "Score", options: DpAuditOptions, variant: Variant) -> Measurement:
    point = score.point
    return row(
        "epsilon_point",
        point.value,
        variant,
        interval=point.interval,
        confidence=point.confidence,
        n=options.trials,
        details={"is_a_bound": False, "threshold": point.threshold, "remark": NO_BOUND},
    )


def _gaussian_rows(
    found: "GaussianBound | None", mechanism: "Mechanism", options: DpAuditOptions, base: Variant
) -> Iterator[Measurement]:
    reason = _why_not_gaussian(found, mechanism, options)
    if reason or found is None:
        for metric in ("epsilon_lower_gaussian", "mu_lower"):
            yield skip(metric, reason, base)
        return
    details = {
        "mu_estimate": found.mu_estimate,
        "normality_p": found.normality_p,
        "equal_variance_p": found.equal_variance_p,
        "remark": IF_GAUSSIAN,
    }
    for metric, value in (("epsilon_lower_gaussian", found.epsilon), ("mu_lower", found.mu)):
        yield row(
            metric, value, base, n=options.trials, confidence=options.confidence, details=details
        )


def _why_not_gaussian(
    found: "GaussianBound | None", mechanism: "Mechanism", options: DpAuditOptions
) -> str:
    """Why the bound for Gaussian noise does not hold; empty where it does."""
    from gradaudit.dp.game import GAUSSIAN_TRIALS

    if mechanism.noise != "gaussian":
        return "holds only for a mechanism that is declared to add Gaussian noise"
    if options.trials < GAUSSIAN_TRIALS:
        return (
            f"{options.trials} releases under each hypothesis cannot tell another law from the "
            f"declared one; {GAUSSIAN_TRIALS} are needed (--trials)"
        )
    if found is None and options.replacement == "uniform":
        return "does not hold where the other value is drawn at random"
    if found is None:
        return "the projection does not vary from release to release"
    if found.normality_p < UNLIKELY:
        return f"the releases are not normally distributed (p = {found.normality_p:.1g})"
    if found.equal_variance_p < UNLIKELY:
        return f"the noise depends on the value (p = {found.equal_variance_p:.1g})"
    return ""


def _histogram(score: "Score") -> dict[str, JsonValue]:
    """Counts of the statistic under both hypotheses in common bins (Li24, figure 7)."""
    import numpy as np

    edges = np.histogram_bin_edges(np.concatenate([score.null, score.alternative]), BINS)
    return {
        "edges": [float(f"{edge:.6g}") for edge in edges],
        "null": np.histogram(score.null, edges)[0].tolist(),
        "alternative": np.histogram(score.alternative, edges)[0].tolist(),
    }
