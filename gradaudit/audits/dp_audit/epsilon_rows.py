"""Makes rows of a played game, and of the epsilon that its mechanism promises."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.game.domain import PRESENCE
from gradaudit.audits.dp_audit.game.missing_noise import DegenerateVerdict
from gradaudit.audits.dp_audit.game.play import GAUSSIAN_TRIALS, StatisticResult, TrialsResult
from gradaudit.audits.dp_audit.game.run import Game
from gradaudit.audits.dp_audit.law.theory import Relation, epsilon_classical, epsilon_composed
from gradaudit.audits.dp_audit.mechanisms import FileMechanism, Mechanism
from gradaudit.audits.dp_audit.middleware import Middleware
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
CLASSICAL_RANGE = "proved only up to epsilon = 1"
NO_LAW = (
    "the law of a mechanism from a file, or of this middleware, is not known; where it clips and "
    "adds noise, name it as dp:clip=C,sigma=S"
)
ALONE = (
    "The batch was 1 record: --companions 15 also plays noise or clipping that depends on the "
    "batch's size."
)
UPDATE = "client's update"
RELATIONS: tuple[Relation, ...] = ("replace", "remove")
LIMITS = (
    "A bound that does not exceed a claim proves no privacy: it speaks of one pair of neighbours, "
    "one state of the model and one release, and cannot rise above its ceiling."
)


def game_rows(game: Game, rows: Rows) -> Iterator[Measurement]:
    """Make every row of one game, the bound first; an empty variant is the headline's."""
    for row in _bound_rows(game, rows):
        headline = row.metric == "epsilon_lower" and not row.variant
        yield _with_claim(row, game) if headline else row
    yield rows.measured("epsilon_ceiling", game.rules.ceiling, n=game.rules.trials)
    if (pair := game.pair) is None:
        yield from rows.skipped(NO_LAW, ["epsilon_pair"])
    else:
        delta = 0.0 if game.mechanism.noise == "laplace" else game.rules.delta
        pairs = len(game.hypotheses.alternatives)
        yield rows.measured("epsilon_pair", pair, n=pairs, details={"delta": delta})
    typical = game.canaries.typical
    ranks = [int(q * (len(typical) - 1)) for q in (0.25, 0.5, 0.75, 1)] if len(typical) else []
    quartiles = [float(typical[rank]) for rank in ranks]
    for kind, canary in (("", game.canaries.played), *game.canaries.by_kind.items()):
        details: dict[str, JsonValue] = {
            "measured_by": game.gaps_from,
            "record": canary.kind,
            "null_value": game.names[canary.null],
            "alternative_value": game.names[canary.alternative],
        }
        if not kind and quartiles:
            details["quartiles_of_ordinary_records"] = list[JsonValue](quartiles)
        of_kind = rows.of({"record": kind} if kind else {})
        yield of_kind.measured("canary_gap", canary.gap, n=1, details=details)


def _with_claim(lower: Measurement, game: Game) -> Measurement:
    """Add the claim to the headline, whether bound or promise contradicts it, and what stays open.

    A claim that the promise of Gaussian noise exceeds needs no trials to be wrong: that is said
    first. (The promise of Laplace noise is at δ = 0 and contradicts no claim at δ.)
    """
    claimed, promise = game.options.claimed_epsilon, game.promise()
    promised = promise.epsilon if promise is not None and promise.delta else None
    exceeded = claimed is not None and lower.number is not None and lower.number > claimed
    details: dict[str, JsonValue] = {**lower.details, "limits": LIMITS}
    remarks = ["no trial erred: epsilon is at least this."] if details.get("at_ceiling") else []
    remarks += [f"Decided without trials: {details['because']}."] if lower.infinite else []
    alone = isinstance(game.mechanism, FileMechanism) and game.hypotheses.records == 1
    remarks += [ALONE] if alone and not exceeded and not lower.infinite else []
    if claimed is not None:
        details |= {"claimed": claimed, "exceeded": exceeded}
        if promised is not None:
            details["theory_exceeds_claim"] = promised > claimed
        if promised is not None and promised > claimed:
            words = "no finite epsilon" if math.isinf(promised) else f"epsilon {promised:.4g}"
            remarks.insert(
                0, f"The mechanism promises {words}, more than the claim of {claimed:g}."
            )
        by_pair = "by this pair, which needs no trials"
        by = by_pair if details.get("analytic") else "by the trials"
        remarks += [
            f"The claim of {claimed:g} is {'exceeded' if exceeded else f'not exceeded {by}'}."
        ]
    if lower.status == "measured":
        details["remark"] = " ".join(remarks if exceeded else [*remarks, LIMITS])
    return lower.model_copy(update={"details": details})


def theory_rows(game: Game, columns: int, rows: Rows) -> Iterator[Measurement]:
    """Make rows of the mechanism's guarantee for a replaced and a removed record.

    The headline is that of the game's relation.

    Li24 divide epsilon by the number of the table's columns, which has no basis.
    """
    bare = [change.key for change in game.array_changes if change.carries_on]
    beside, remarks = dict[str, JsonValue](), list[str]()
    if bare:
        beside["untouched"] = list[JsonValue](bare)
        remarks.append(f"of what is clipped and under noise; {listed(bare)} is neither")
    law = game.mechanism.known if isinstance(game.mechanism, Middleware) else None
    if law is not None and law.claim is not None:
        claimed, at = law.claim
        beside["mod_claims"] = {"epsilon": claimed, "delta": at}
        remarks.append(
            f"the mod claims {claimed:g} at delta {at:g}, of the sensitivity it is given"
        )
    beside |= {"remark": "; ".join(remarks)} if remarks else {}
    batch = game.hypotheses.records
    for relation in RELATIONS:
        promise = game.promise(relation)
        if promise is None:
            yield from rows.skipped(NO_LAW, ["epsilon_theory", "epsilon_classical"])
            return
        own = relation == game.options.relation
        variant: Variant = {} if own else {"relation": relation}
        of_relation = rows.of(variant, {"relation": relation})
        details: dict[str, JsonValue] = {
            "sensitivity_over_noise": promise.mu if math.isfinite(promise.mu) else None,
            "delta": promise.delta,
            **beside,
        }
        yield of_relation.measured("epsilon_theory", promise.epsilon, n=batch, details=details)
        if not promise.delta:
            reason = "the classical formula is for Gaussian noise"
            yield from of_relation.skipped(reason, ["epsilon_classical"])
            continue
        value = epsilon_classical(promise.mu, game.rules.delta)
        details |= {"in_range": value <= 1, "range": CLASSICAL_RANGE}
        if value > 1:
            details["remark"] = f"out of range: {CLASSICAL_RANGE}"
        yield of_relation.measured("epsilon_classical", value, n=batch, details=details)
        if relation == "remove" and columns:
            note = "Li24's figure 8; dividing by columns has no basis"
            yield of_relation.of({"per": "column"}, {"columns": columns, "note": note}).measured(
                "epsilon_classical", value / columns, n=batch
            )


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
        "epsilon_theory", composed, n=options.steps, details={"delta": options.delta}
    )


def _bound_rows(game: Game, rows: Rows) -> Iterator[Measurement]:
    """Make rows of the trials' bounds, or of the reason why there are none."""
    options, played, result = game.options, game.canaries.played, game.result
    name, others = game.attribute, options.replacement == "uniform"
    secret = UPDATE if game.mechanism.unit == "client" else PRESENCE
    facts: dict[str, JsonValue] = {
        **({"secret": secret} if name is None else {"attribute": name}),
        "null_value": game.names[played.null],
        "alternative_value": "every other" if others else game.names[played.alternative],
        "record": played.kind,
        "mechanism": game.mechanism.description,
        "mode": options.mode,
        "delta": options.delta,
        "batch": game.hypotheses.records,
        "elements": game.hypotheses.elements,
        "comparisons": game.rules.comparisons,
    }
    no_bound = ["epsilon_lower", *PROVEN_BY_TRIALS]
    if game.untestable:
        reason = f"this pair cannot test the claim: {game.untestable}"
        yield from rows.skipped(reason, no_bound, details=facts)
    elif isinstance(result, DegenerateVerdict):
        facts |= {"analytic": True, "because": result.reason}
        yield rows.measured("epsilon_lower", result.epsilon, details=facts)
        yield from rows.skipped(f"decided without trials: {result.reason}", PROVEN_BY_TRIALS)
    elif result.dependent:
        yield from rows.skipped(DEPENDENT, no_bound, details=facts)
    else:
        yield from _trials_rows(result, game, facts, rows)


def _trials_rows(
    result: TrialsResult, game: Game, facts: dict[str, JsonValue], rows: Rows
) -> Iterator[Measurement]:
    asked, n, level = game.rules.statistic, game.rules.trials, game.rules.confidence
    facts |= {"pilots": result.pilots, "decided_by": result.decided_by}
    if result.reads:
        facts["reads"] = result.reads
    for name, score in sorted(result.scores.items(), key=lambda item: item[0] != asked):
        measured = partial((rows if name == asked else rows.of({"statistic": name})).measured, n=n)
        details = {**facts, "statistic": name, **_evidence(score)}
        yield measured("epsilon_lower", score.bound.value, confidence=level, details=details)
        point, threshold = score.point, score.point.threshold
        details = {"is_a_bound": False, "threshold": threshold, "remark": NO_BOUND}
        yield measured(
            "epsilon_point",
            point.value,
            interval=point.interval,
            confidence=point.confidence,
            details=details,
        )
    bound, reason = result.gaussian, _why_not_gaussian(result, game)
    if reason or bound is None:
        yield from rows.skipped(reason, PROVEN_IF_GAUSSIAN)
        return
    details = {**bound.agreement, "remark": f"{IF_GAUSSIAN}; {_jointly(level)}"}
    for metric, value in zip(PROVEN_IF_GAUSSIAN, (bound.epsilon, bound.mu), strict=True):
        yield rows.measured(metric, value, n=n, confidence=level, details=details)


def _jointly(level: float) -> str:
    """Word the joint level of both lower bounds, by Bonferroni's inequality."""
    return (
        f"this bound and epsilon_lower are below the truth in {level:.0%} of audits each, and both "
        f"in at least {2 * level - 1:.0%}"
    )


def _evidence(score: StatisticResult) -> dict[str, JsonValue]:
    """Collect what a bound rests on, with the histogram of both hypotheses (Li24, figure 7)."""
    bound = score.bound
    edges = np.histogram_bin_edges(np.concatenate([score.null, score.alternative]), BINS)
    return {
        "bound": bound.method,
        "thresholds": list[JsonValue](bound.thresholds),
        **bound.evidence,
        "releases": [len(score.null), len(score.alternative)],
        "ceiling": bound.ceiling,
        "at_ceiling": bound.flawless and bound.value >= bound.ceiling * (1 - 1e-9),
        "histogram": {
            "edges": [float(f"{edge:.6g}") for edge in edges],
            "null": np.histogram(score.null, edges)[0].tolist(),
            "alternative": np.histogram(score.alternative, edges)[0].tolist(),
        },
    }


def _why_not_gaussian(result: TrialsResult, game: Game) -> str:
    """Say why the bound for Gaussian noise does not hold; empty where it does."""
    bound, trials = result.gaussian, game.rules.trials
    if game.mechanism.noise != "gaussian":
        return "holds only for a mechanism that is declared to add Gaussian noise"
    if trials < GAUSSIAN_TRIALS:
        return (
            f"{trials} releases under each hypothesis cannot tell another law from the "
            f"declared one; {GAUSSIAN_TRIALS} are needed (--trials)"
        )
    if bound is None and game.options.replacement == "uniform":
        return "does not hold where the other value is drawn at random"
    if bound is None:
        return "the projection does not vary from release to release"
    if bound.normality_p < UNLIKELY:
        return f"the releases are not normally distributed (p = {bound.normality_p:.1g})"
    if bound.equal_variance_p < UNLIKELY:
        return f"the noise depends on the value (p = {bound.equal_variance_p:.1g})"
    return ""
