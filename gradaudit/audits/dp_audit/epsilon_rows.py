"""Makes rows of a played game, and of the epsilon that its mechanism promises."""

import math
from collections.abc import Iterator

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.game.missing_noise import DegenerateVerdict, lone_repeats
from gradaudit.audits.dp_audit.game.play import GAUSSIAN_TRIALS, StatisticResult, TrialsResult
from gradaudit.audits.dp_audit.game.run import Game
from gradaudit.audits.dp_audit.law.estimates import GaussianBound
from gradaudit.audits.dp_audit.law.theory import Relation, epsilon_classical, epsilon_composed
from gradaudit.audits.dp_audit.mechanisms import Mechanism
from gradaudit.audits.rows import Rows
from gradaudit.core.text import listed
from gradaudit.errors import UsageError
from gradaudit.report import Measurement, Variant

BINS = 40
UNLIKELY = 1e-4
"""A p-value below this says that the noise is not what it is declared to be."""
NO_BOUND = "the paper's estimate, from the best threshold on the same trials; no bound"
IF_GAUSSIAN = "holds only if the noise is Gaussian, as it is declared to be"
PROVEN_IF_GAUSSIAN = ("epsilon_lower_gaussian", "mu_lower")
PROVEN_BY_TRIALS = (*PROVEN_IF_GAUSSIAN, "epsilon_point")
DEPENDENT = (
    "the releases depend on each other (p <= 0.001), as of a mechanism that carries noise or state "
    "from one to the next, so nothing bounds the epsilon of one; audit it with fresh state for "
    "each release"
)
UNTESTABLE = "this pair cannot test the claim"
REPEATS = (
    "are one and the same under one value and never under the other, while the others differ, as "
    "where noise is left out at times; more --trials prove more"
)
CLASSICAL_RANGE = "proved only up to epsilon = 1"
NO_LAW = (
    "the law of a mechanism from a file, or of this middleware, is not known; where it clips and "
    "adds noise, name it as dp:clip=C,sigma=S"
)
UPDATE = "a client's update"
RELATIONS: tuple[Relation, ...] = ("replace", "remove")
THEORY = ("epsilon_theory", "epsilon_classical")

LIMITS = (
    "A bound that does not exceed a claim proves no privacy: it speaks of one pair of neighbours, "
    "one state of the model and one release, and cannot rise above its ceiling."
)


def game_rows(game: Game, options: DpAuditOptions, rows: Rows) -> Iterator[Measurement]:
    """Make every row of one game, the bound first; an empty variant is the headline's."""
    for row in _bound_rows(game, options, rows):
        headline = row.metric == "epsilon_lower" and not row.variant
        yield with_claim(row, game, options) if headline else row
    yield rows.measured("epsilon_ceiling", game.rules.ceiling, n=options.trials)
    if game.pair is None:
        yield from rows.skipped(NO_LAW, ["epsilon_pair"])
    else:
        delta = 0.0 if game.mechanism.noise == "laplace" else options.delta
        yield rows.measured("epsilon_pair", game.pair, details={"delta": delta})
    yield from _gap_rows(game, rows)


def with_claim(lower: Measurement, game: Game, options: DpAuditOptions) -> Measurement:
    """Add the claim to the headline, and whether the bound or the promise contradicts it.

    A claim that the promise of Gaussian noise exceeds needs no trials to be wrong: that is said
    first. (The promise of Laplace noise is at δ = 0 and contradicts no claim at δ.)
    """
    claimed, promise = options.claimed_epsilon, game.promise()
    promised = promise.epsilon if promise is not None and promise.delta else None
    details: dict[str, JsonValue] = {**lower.details, "limits": LIMITS}
    if claimed is not None:
        exceeded = lower.number is not None and lower.number > claimed
        details |= {"claimed": claimed, "exceeded": exceeded}
        if promised is not None:
            details["theory_exceeds_claim"] = promised > claimed
    if lower.status == "measured":
        details["remark"] = _remark(lower, claimed, promised)
    return lower.model_copy(update={"details": details})


def _remark(lower: Measurement, claimed: float | None, promised: float | None) -> str:
    """Say in words how promise and bound compare with the claim, and what stays open."""
    flawless = lower.details.get("at_ceiling")
    said = ["no trial erred: epsilon is at least this."] if flawless else []
    if repeats := lower.details.get("repeats"):
        said += [f"{repeats} releases {REPEATS}."]
    said += [f"Decided without trials: {lower.details['because']}."] if lower.infinite else []
    if claimed is None:
        return " ".join([*said, LIMITS])
    if promised is not None and promised > claimed:
        words = "no finite epsilon" if math.isinf(promised) else f"epsilon {promised:.4g}"
        said.insert(0, f"The mechanism promises {words}, more than the claim of {claimed:g}.")
    if lower.number is not None and lower.number > claimed:
        return " ".join([*said, f"The claim of {claimed:g} is exceeded."])
    how = (
        "by this pair, which needs no trials" if lower.details.get("analytic") else "by the trials"
    )
    return " ".join([*said, f"The claim of {claimed:g} is not exceeded {how}.", LIMITS])


def theory_rows(
    game: Game, options: DpAuditOptions, columns: int, rows: Rows
) -> Iterator[Measurement]:
    """Make rows of the mechanism's guarantee for a replaced (headline) and a removed record.

    Li24 divide epsilon by the number of the table's columns, which has no basis.
    """
    for relation in RELATIONS:
        promise = game.promise(relation)
        if promise is None:
            reason = (
                "a deterministic defense promises no finite epsilon"
                if game.mechanism.deterministic
                else NO_LAW
            )
            yield from rows.skipped(reason, THEORY)
            return
        variant: Variant = {} if relation == "replace" else {"relation": relation}
        of_relation = rows.of(variant, {"relation": relation})
        details: dict[str, JsonValue] = {
            "sensitivity_over_noise": promise.mu if math.isfinite(promise.mu) else None,
            "delta": promise.delta,
            **_only_without(game),
        }
        yield of_relation.measured("epsilon_theory", promise.epsilon, details=details)
        if not promise.delta:
            reason = "the classical formula is for Gaussian noise"
            yield from of_relation.skipped(reason, ["epsilon_classical"])
            continue
        classical = epsilon_classical(promise.mu, options.delta)
        details |= {"in_range": classical.in_range, "range": CLASSICAL_RANGE}
        if not classical.in_range:
            details["remark"] = f"out of range: {CLASSICAL_RANGE}"
        yield of_relation.measured("epsilon_classical", classical.value, details=details)
        if relation == "remove" and columns:
            note = "Li24's figure 8; dividing by columns has no basis"
            yield of_relation.of({"per": "column"}).measured(
                "epsilon_classical",
                classical.value / columns,
                details={"columns": columns, "note": note},
            )


def _only_without(game: Game) -> dict[str, JsonValue]:
    """Name the arrays that leave undefended, which the promise does not cover."""
    bare = [fate.key for fate in game.fates if fate.carries_on]
    if not bare:
        return {}
    remark = f"of what is clipped and under noise; {listed(bare)} is neither"
    return {"untouched": list[JsonValue](bare), "remark": remark}


def composition_rows(
    mechanism: Mechanism, options: DpAuditOptions, rows: Rows
) -> Iterator[Measurement]:
    """Make rows of the epsilon of ``--steps`` steps, to compare with a claimed budget.

    Raises:
        UsageError: composition is asked for a mechanism that has none here, or dp-accounting is
            missing.
    """
    if options.steps is None:
        return
    multiplier, rate = mechanism.noise_multiplier, options.sampling_rate
    if multiplier is None:
        raise UsageError("--steps: only Gaussian noise on the sum of clipped gradients composes")
    composed = epsilon_composed(multiplier, options.steps, options.delta, sampling_rate=rate)
    yield rows.of({"steps": options.steps, "sampling_rate": rate}).measured(
        "epsilon_theory", composed, details={"delta": options.delta}
    )


def _bound_rows(game: Game, options: DpAuditOptions, rows: Rows) -> Iterator[Measurement]:
    """Make rows of the trials' bounds, or of the reason why there are none."""
    facts, result = _facts(game, options), game.result
    if game.untestable:
        reason = f"{UNTESTABLE}: {game.untestable}"
        yield from rows.skipped(reason, ["epsilon_lower", *PROVEN_BY_TRIALS], details=facts)
        return
    if not isinstance(result, DegenerateVerdict):
        if result.dependent:
            yield from rows.skipped(DEPENDENT, ["epsilon_lower", *PROVEN_BY_TRIALS], details=facts)
        else:
            yield from _trials_rows(result, game.mechanism, facts, options, rows)
        return
    facts |= {"analytic": True, "because": result.reason}
    if options.picture is not None:
        facts["picture"] = "not drawn: decided without trials"
    yield rows.measured("epsilon_lower", result.epsilon, details=facts)
    yield from rows.skipped(f"decided without trials: {result.reason}", PROVEN_BY_TRIALS)


def _gap_rows(game: Game, rows: Rows) -> Iterator[Measurement]:
    canaries = game.canaries
    typical = canaries.typical
    quartiles = [float(typical[int(q * (len(typical) - 1))]) for q in (0.25, 0.5, 0.75, 1)]
    for kind, canary in (("", canaries.played), *canaries.by_kind.items()):
        details: dict[str, JsonValue] = {
            "measured_by": game.gaps_from,
            "record": canary.kind,
            "null_value": game.names[canary.null],
            "alternative_value": game.names[canary.alternative],
        }
        if not kind:
            details["quartiles_of_ordinary_records"] = list[JsonValue](quartiles)
        of_kind = rows.of({"record": kind}) if kind else rows
        yield of_kind.measured("canary_gap", canary.gap, details=details)


def _facts(game: Game, options: DpAuditOptions) -> dict[str, JsonValue]:
    """Collect the facts that all bounds of a game rest on."""
    played, names = game.canaries.played, game.names
    mixture = options.replacement == "uniform"
    name = game.attribute
    about: dict[str, JsonValue] = {"secret": UPDATE} if name is None else {"attribute": name}
    return {
        **about,
        "null_value": names[played.null],
        "alternative_value": "every other" if mixture else names[played.alternative],
        "record": played.kind,
        "mechanism": game.mechanism.description,
        "mode": options.mode,
        "delta": options.delta,
        "batch": game.hypotheses.records,
        "elements": game.hypotheses.elements,
        "comparisons": game.rules.comparisons,
    }


def _trials_rows(
    result: TrialsResult,
    mechanism: Mechanism,
    facts: dict[str, JsonValue],
    options: DpAuditOptions,
    rows: Rows,
) -> Iterator[Measurement]:
    facts |= {"pilots": result.pilots, "decided_by": result.decided_by}
    if result.reads:
        facts["reads"] = result.reads
    asked_first = sorted(result.scores.items(), key=lambda item: item[0] != options.statistic)
    for name, score in asked_first:
        of_statistic = rows if name == options.statistic else rows.of({"statistic": name})
        yield _bound_row(score, {**facts, "statistic": name}, options, of_statistic)
        yield of_statistic.measured(
            "epsilon_point",
            score.point.value,
            interval=score.point.interval,
            confidence=score.point.confidence,
            n=options.trials,
            details={"is_a_bound": False, "threshold": score.point.threshold, "remark": NO_BOUND},
        )
    yield from _gaussian_rows(result.gaussian, mechanism, options, rows)


def _bound_row(
    score: StatisticResult, facts: dict[str, JsonValue], options: DpAuditOptions, rows: Rows
) -> Measurement:
    bound = score.bound
    edges = np.histogram_bin_edges(np.concatenate([score.null, score.alternative]), BINS)
    details: dict[str, JsonValue] = {
        **facts,
        "bound": bound.method,
        "thresholds": list[JsonValue](bound.thresholds),
        **bound.evidence,
        "releases": [len(score.null), len(score.alternative)],
        "ceiling": bound.ceiling,
        "at_ceiling": bound.flawless and bound.value >= bound.ceiling * (1 - 1e-9),
        "histogram": {  # of the statistic under both hypotheses (Li24, figure 7)
            "edges": [float(f"{edge:.6g}") for edge in edges],
            "null": np.histogram(score.null, edges)[0].tolist(),
            "alternative": np.histogram(score.alternative, edges)[0].tolist(),
        },
    }
    if repeats := lone_repeats(score.null, score.alternative):
        details["repeats"] = repeats
    level, trials = options.confidence, options.trials
    return rows.measured("epsilon_lower", bound.value, n=trials, confidence=level, details=details)


def _gaussian_rows(
    bound: GaussianBound | None, mechanism: Mechanism, options: DpAuditOptions, rows: Rows
) -> Iterator[Measurement]:
    reason = _why_not_gaussian(bound, mechanism, options)
    if reason or bound is None:
        yield from rows.skipped(reason, PROVEN_IF_GAUSSIAN)
        return
    details: dict[str, JsonValue] = {
        "mu_estimate": bound.mu_estimate,
        "normality_p": bound.normality_p,
        "equal_variance_p": bound.equal_variance_p,
        "remark": IF_GAUSSIAN,
    }
    for metric, value in zip(PROVEN_IF_GAUSSIAN, (bound.epsilon, bound.mu), strict=True):
        yield rows.measured(
            metric, value, n=options.trials, confidence=options.confidence, details=details
        )


def _why_not_gaussian(
    bound: GaussianBound | None, mechanism: Mechanism, options: DpAuditOptions
) -> str:
    """Say why the bound for Gaussian noise does not hold; empty where it does."""
    if mechanism.noise != "gaussian":
        return "holds only for a mechanism that is declared to add Gaussian noise"
    if options.trials < GAUSSIAN_TRIALS:
        return (
            f"{options.trials} releases under each hypothesis cannot tell another law from the "
            f"declared one; {GAUSSIAN_TRIALS} are needed (--trials)"
        )
    if bound is None and options.replacement == "uniform":
        return "does not hold where the other value is drawn at random"
    if bound is None:
        return "the projection does not vary from release to release"
    if bound.normality_p < UNLIKELY:
        return f"the releases are not normally distributed (p = {bound.normality_p:.1g})"
    if bound.equal_variance_p < UNLIKELY:
        return f"the noise depends on the value (p = {bound.equal_variance_p:.1g})"
    return ""
