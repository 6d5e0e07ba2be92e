"""Bounds the whole epsilon of one training with canaries, of clients or of records.

The scores are those that a training left in its folder, or those of canary records in a training by
Opacus that is run here.
"""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.epsilon_rows import UNLIKELY
from gradaudit.audits.dp_audit.law.estimates import gaussian_bound
from gradaudit.audits.dp_audit.law.one_run_bounds import epsilon_one_run, one_run_ceiling
from gradaudit.audits.dp_audit.law.theory import epsilon_composed, epsilon_gaussian
from gradaudit.audits.dp_audit.mechanisms import load_mechanism
from gradaudit.audits.dp_audit.mechanisms.opacus_optimizer import OpacusMechanism
from gradaudit.audits.rows import Rows
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.data.common.packing import arguments
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.federation.canaries import CanaryScores, Unit
from gradaudit.federation.record_canaries import RecordCanaries
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject

LIMITS: dict[Unit, str] = {
    "client": "A bound that is not exceeded proves no privacy: it speaks of clients of random "
    "directions, identified by the sum of their cosines with the released means, and cannot rise "
    "above its ceiling.",
    "record": "A bound that is not exceeded proves no privacy: it speaks of records of known "
    "gradients in a run whose other records are known, and cannot rise above its ceiling.",
}
_IF_GAUSSIAN = "holds only if the run's trade-off is that of a Gaussian mechanism"
_IF_NORMAL = "holds only if all else in the released means is normal and alike for all canaries"
_BOUNDS = 3
_NO_BOUND = "of the canaries' mean shift over its deviation; no bound"
_NO_SPREAD = "the cosines of all canaries are the same"
_NOT_NORMAL = "the sums of the canaries' cosines are not normally distributed"
_OTHERS = ("epsilon_pair", "epsilon_theory", "epsilon_classical", "canary_gap")
_NO_PAIR = "one run plays no pair of values, and its promise is not known"


def scores_of_run(subject: Subject, options: DpAuditOptions, progress: Progress) -> CanaryScores:
    """Train with canary records where a mechanism is named; else read what a training left.

    Raises:
        UsageError: the mechanism is not Opacus's, no steps or no folder are named, or Opacus cannot
            train the model.
        CheckpointError: the folder has no scores, or they are damaged.
        NotApplicable: no round was trained yet.
    """
    if options.mechanism is not None:
        return _trained(options.mechanism, subject, options, progress)
    if options.canaries is None:
        raise UsageError(
            "--mode one-run: name the folder of a training with --canaries RUN, or train here with "
            "--mechanism opacus:clip=C,sigma=S --steps T"
        )
    scores = CanaryScores.read(options.canaries)
    if not len(scores.cosines):
        raise NotApplicable(f"{options.canaries}: no round was trained yet")
    return scores


def _trained(
    text: str, subject: Subject, options: DpAuditOptions, progress: Progress
) -> CanaryScores:
    """Train the subject's model on its records for ``--steps`` steps of Poisson batches.

    Modules are in training mode, without which Opacus has no gradients of records.
    """
    if options.steps is None:
        raise UsageError("--steps: say how many steps the run of --mode one-run has")
    mechanism = load_mechanism(text)
    if not isinstance(mechanism, OpacusMechanism):
        raise UsageError(
            "--mode one-run trains with --mechanism opacus:clip=C,sigma=S; for another mechanism "
            "put its canaries into your own training (gradaudit.integrations.opacus)"
        )
    if mechanism.divisor == "records":
        raise UsageError("--mode one-run divides by a constant: leave divisor=records out")
    records, rate, draws = subject.records, options.sampling_rate, rng(subject.seed, "one run")
    target = subject.target
    model = mechanism.wrapped(copy.deepcopy(target.model).train())
    optimizer = mechanism.optimizer(
        list(model.parameters()),
        lr=options.rate,
        expected_batch_size=1.0,
        generator=torch_rng(subject.seed, "one run", device=target.device),
    )
    with (
        RecordCanaries(optimizer, sampling_rate=rate, count=None, seed=subject.seed) as canaries,
        progress.task("one run", options.steps) as advance,
    ):
        optimizer.expected_batch_size = rate * (len(records) + canaries.count / 2)
        for _ in range(options.steps):
            optimizer.zero_grad()
            taken = torch.from_numpy(np.flatnonzero(draws.random(len(records)) < rate))
            if len(taken):
                given, named = arguments(target.parts, records.inputs[taken].to(target.device))
                outputs = target.loss.outputs_of(model, given, named)
                loss = target.loss.of_batch(outputs, records.labels[taken].to(target.device))
                torch.autograd.backward(loss)
            optimizer.step()
            advance(1)
    return canaries.scores()


def one_run_rows(
    options: DpAuditOptions, scores: CanaryScores, rows: Rows
) -> Iterator[Measurement]:
    """Yield the bound with the claim, then the bounds for Gaussian noise and the estimate.

    Raises:
        NotApplicable: there are too few canaries.
    """
    included, layered = scores.included, scores.cosines.sum(axis=0)
    totals, n, level = layered[:, 0], len(included), options.confidence
    at = {"delta": options.delta, "alpha": 1 - level}
    plain, sharper = epsilon_one_run(totals, included, **at, unit=scores.unit)
    rows = rows.of(
        {},
        {
            "secret": f"{scores.unit}'s presence",
            "mode": options.mode,
            "delta": options.delta,
            "rounds": len(scores.cosines),
            "canaries": n,
            "included": int(included.sum()),
        },
    )
    promise = _promised(scores, options.delta)
    shifts = zip(scores.layers, layered.T[1:], strict=True)
    limits, claimed = LIMITS[scores.unit], options.claimed_epsilon
    remark, exceeded = limits, claimed is not None and plain.value > claimed
    if claimed is not None:
        verdict = "exceeded" if exceeded else "not exceeded by this run"
        remark = f"The claim of {claimed:g} is {verdict}. {limits}"
    details: dict[str, JsonValue] = {
        "estimator": "one-run",
        **plain.counts,
        "shift_by_layer": {layer: _standing_out(some, included) for layer, some in shifts},
        "shift_by_round": [_standing_out(each[:, 0], included) for each in scores.cosines],
        "limits": limits,
        "remark": remark,
        **_suspected(scores, plain.value, promise),
        **({} if claimed is None else {"claimed": claimed, "exceeded": exceeded}),
    }
    yield rows.measured("epsilon_lower", plain.value, n=n, confidence=level, details=details)
    alone = max(1 - _BOUNDS * (1 - level), 0.0)
    by_itself = f"by itself: of the largest of the three bounds only {alone:.0%} is promised"
    remark = f"{_IF_GAUSSIAN}, and {by_itself}"
    details = {"estimator": "f-dp", "remark": remark, **sharper.counts}
    lower = "epsilon_lower_gaussian"
    yield rows.measured(lower, sharper.value, n=n, confidence=level, details=details)
    yield from _shift_rows(totals, included, f"{_IF_NORMAL}, and {by_itself}", options, rows)
    yield rows.measured("epsilon_ceiling", one_run_ceiling(n, **at, unit=scores.unit), n=n)
    if promise is not None:
        yield rows.measured("epsilon_theory", promise, details=scores.facts)
    unknown = (name for name in _OTHERS if promise is None or name != "epsilon_theory")
    yield from rows.skipped(_NO_PAIR, unknown)


def _shift_rows(
    totals: NDArray[np.float64],
    included: NDArray[np.bool_],
    remark: str,
    options: DpAuditOptions,
    rows: Rows,
) -> Iterator[Measurement]:
    """Make the rows of the canaries' mean shift: a bound if all else is Gaussian, an estimate."""
    mean, level = rows.of({"estimator": "mean shift"}), options.confidence
    groups, delta = (totals[~included], totals[included]), options.delta
    spread = any(group.std() for group in groups)
    bound = gaussian_bound(*groups, delta=delta, alpha=1 - level) if spread else None
    if bound is None or bound.normality_p < UNLIKELY:
        why = _NO_SPREAD if bound is None else f"{_NOT_NORMAL} (p = {bound.normality_p:.1g})"
        yield from mean.skipped(why, ["epsilon_lower_gaussian"])
        yield from rows.skipped(why, ["mu_lower", "epsilon_point"])
        return
    details: dict[str, JsonValue] = {**bound.agreement, "remark": remark}
    yield mean.measured("epsilon_lower_gaussian", bound.epsilon, confidence=level, details=details)
    yield rows.measured("mu_lower", bound.mu, confidence=level, details=details)
    estimate = epsilon_gaussian(max(bound.mu_estimate, 0.0), delta)
    details |= {"is_a_bound": False, "remark": _NO_BOUND}
    yield rows.measured("epsilon_point", estimate, details=details)


def _promised(scores: CanaryScores, delta: float) -> float | None:
    """Compute the epsilon that a run's noise multiplier, sampling rate and steps promise."""
    if not scores.facts:
        return None
    multiplier, rate = (
        float(str(scores.facts[key])) for key in ("noise_multiplier", "sampling_rate")
    )
    steps = max(1, len(scores.cosines))
    return epsilon_composed(multiplier, steps, delta, sampling_rate=rate, relation="remove")


def _suspected(scores: CanaryScores, bound: float, promise: float | None) -> dict[str, JsonValue]:
    """List the accountant's assumptions that the run contradicts."""
    suspicions = scores.facts.get("suspicions")
    found = [str(each) for each in suspicions] if isinstance(suspicions, list) else []
    if promise is not None and bound > promise:
        found.insert(0, f"the run promises an epsilon of {promise:.3g}, and exceeds it")
    return {"warning": "; ".join(found)} if found else {}


def _standing_out(values: NDArray[np.float64], included: NDArray[np.bool_]) -> float:
    """Compute by how many deviations the included canaries' mean exceeds the others'."""
    inside, outside = values[included], values[~included]
    spread = np.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
    return float((inside.mean() - outside.mean()) / spread) if spread else 0.0
