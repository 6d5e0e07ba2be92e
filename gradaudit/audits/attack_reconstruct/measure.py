"""Attacks the updates of some batches with every method, and scores the reconstructions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.attacks.layerwise.fully_connected import under_noise
from gradaudit.attacks.reconstruction import Method, expect_numbers, load_methods
from gradaudit.attacks.reconstruction.attempts import Attempt, answer_of, attempt
from gradaudit.attacks.reconstruction.campaign import (
    Campaign,
    Choice,
    attacking,
    draw_examples,
    example_name,
    expect_folder,
)
from gradaudit.attacks.reconstruction.closeness import assigned, relative_error
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.audits.attack_reconstruct import AttackReconstruct
from gradaudit.audits.attack_reconstruct.options import (
    AUTOMATIC,
    AttackOptions,
    BatchOptions,
    ReconstructOptions,
    RoundsOptions,
    UpdateOptions,
)
from gradaudit.audits.rows import NO_TRUTH, Details, Rows, by_round
from gradaudit.core.statistics.intervals import clopper_pearson, student
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.gradients.differentiation import cut_of_input
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.measurement import CHANCE, CLOSEST, CUT_DERIVATIVE
from gradaudit.models.target import Target
from gradaudit.progress import Progress
from gradaudit.report import RISKIEST_BY, Measurement, Variant
from gradaudit.subject import Subject

SCORES = ("mse", "relative_error", "psnr", "ssim")
METRICS = (*SCORES, "label_accuracy", "attacker_score")
_RANGES = {"psnr": (-math.inf, math.inf), "ssim": (-1.0, 1.0), "certainty": (0.0, 1.0)}
SEARCHES = 9
"""Factor of ``batches`` that bounds ``solved`` where the closed form searches for the record."""
_FEWEST = 5
"""Values, below which an interval of their mean would say nothing."""
NO_PICTURE = (
    "the records are no pictures in [0, 1] with one or three channels, or too small for a window"
)
_NO_LABELS = "the attacker was given the labels, names none, or they are real numbers"


@dataclass(frozen=True)
class MethodAttempts:
    """A method's attempts, one for each batch, and the error below which one is a success."""

    attempts: Sequence[Attempt]
    batch: int
    success: float

    def rows(self, rows: Rows, facts: Details) -> Iterator[Measurement]:
        """Make rows of all metrics of this method, with facts of the attacks that were made."""
        explained = rows.of({}, facts)
        answered = [attempt for attempt in self.attempts if attempt.answer is not None]
        if not answered:
            yield from explained.failed("every restart diverged", METRICS)
            return
        for metric in SCORES:
            scored = [attempt for attempt in answered if metric in attempt.scores]
            if scored:
                answers = np.array([a.scores[metric][a.answer] for a in scored])
                yield self._score(metric, answers, explained)
            else:
                truth = any(attempt.scores for attempt in self.attempts)
                yield from rows.skipped(NO_PICTURE if truth else NO_TRUTH, [metric])
        shares = [float(a.labels[a.answer]) for a in answered if a.labels is not None]
        if shares:
            count, hits = len(shares) * self.batch, round(sum(shares) * self.batch)
            interval = clopper_pearson(hits, count)
            yield explained.measured("label_accuracy", hits / count, interval=interval, n=count)
        else:
            yield from rows.skipped(_NO_LABELS, ["label_accuracy"])
        scores = [float(a.candidates.scores[a.answer or 0]) for a in answered]
        yield explained.measured("attacker_score", float(np.mean(scores)), n=len(scores))
        sure = [(a.candidates.certainty, a.answer or 0) for a in answered]
        means = np.array([float(each[answer].mean()) for each, answer in sure if each is not None])
        if len(means):
            ends = _interval("certainty", means)
            yield explained.measured("certainty", float(means.mean()), interval=ends, n=len(means))

    def _score(self, metric: str, answers: NDArray[np.float64], rows: Rows) -> Measurement:
        details: dict[str, JsonValue] = {
            "answers": [_number(float(answer)) for answer in answers],
            "restarts": self._restarts(metric),
        }
        if without := sum(metric not in attempt.scores for attempt in self.attempts):
            details["left_out"] = f"{without} of {len(self.attempts)} batches: {NO_PICTURE}"
        interval = _interval(metric, answers)
        return rows.measured(
            metric, float(answers.mean()), interval=interval, n=len(answers), details=details
        )

    def _restarts(self, metric: str) -> dict[str, JsonValue]:
        """Summarise a score over the restarts of all batches: mean, best, and successes."""
        scored = [attempt for attempt in self.attempts if metric in attempt.scores]
        usable = np.concatenate([attempt.usable for attempt in scored])
        scores = np.concatenate([attempt.scores[metric] for attempt in scored])[usable]
        errors = np.concatenate([attempt.scores["relative_error"] for attempt in scored])
        successes, count = int((errors[usable] <= self.success).sum()), len(errors)
        best = scores.max() if metric in ("psnr", "ssim") else scores.min()
        ends = _interval(metric, scores)
        return {
            "count": count,
            "diverged": int((~usable).sum()),
            "mean": _number(float(scores.mean())),
            "mean_interval": None if ends is None else list(ends),
            "best": _number(float(best)),
            "success_rate": successes / count,
            "success_interval": list(clopper_pearson(successes, count)),
            "success": f"relative error up to {self.success:g}",
        }


def attack_facts(attempts: Sequence[Attempt]) -> dict[str, JsonValue]:
    """Merge the attack's facts; those that differ between batches stand under ``batches``.

    Of one batch there is no such list.
    """
    details = [attempt.candidates.details for attempt in attempts]
    names = list(dict.fromkeys(name for detail in details for name in detail))
    same = [
        name for name in names if all(name in t and t[name] == details[0][name] for t in details)
    ]
    facts: dict[str, JsonValue] = {name: details[0][name] for name in same}
    if len(same) < len(names):
        facts["batches"] = [
            {n: v for n, v in detail.items() if n not in same} for detail in details
        ]
    return facts


def _interval(metric: str, values: NDArray[np.float64]) -> tuple[float, float] | None:
    """Compute Student's interval within the metric's range; None for few or infinite values."""
    if len(values) < _FEWEST or not np.isfinite(values).all():
        return None
    low, high = student(values)
    least, most = _RANGES.get(metric, (0.0, math.inf))
    return max(low, least), min(high, most)


def _number(value: float) -> JsonValue:
    return value if math.isfinite(value) else str(value)


def gradients(audit: AttackReconstruct, subject: Subject) -> float:
    """Count the passes of all restarts of all methods on all batches."""
    options, size = audit.options, audit.options.batch_size
    model = FunctionalModel.of(subject.target, dtype=torch.float32)
    record = model.cast(subject.records.inputs[:1])
    times, passes = options.steps(size) * (1 + options.others), options.passes(size)
    return options.rounds(len(subject.targets)) * sum(
        _count(method, options, subject)
        * (method.steps() * passes + subject.waiting(method.calls_on(model, record) * times))
        for method in _methods(options).values()
    )


def _count(method: Method, options: ReconstructOptions, subject: Subject) -> int:
    """Count the updates that a method attacks; those in closed form attack more."""
    updates = options.count(subject) // options.rounds(len(subject.targets))
    if method.restarts or options.records or options.update is not None:
        return updates
    model = FunctionalModel.of(subject.target, dtype=torch.float32)
    calls = method.calls_on(model, model.cast(subject.records.inputs[:1]))
    searches = calls > method.calls() or method.steps() > 1
    least = min(options.solved, SEARCHES * options.batches) if searches else options.solved
    return max(updates, options.model_copy(update={"batches": least}).drawn(subject.samples))


def run(audit: AttackReconstruct, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Attack, and yield rows; the variants are ``round`` (older checkpoints) and ``method``.

    Raises:
        NotApplicable: no method applies.
        UsageError: an option is wrong for these records, or no method takes it.
        CheckpointError: a captured update is refused.
    """
    options = audit.options
    if options.save_examples is not None:
        expect_folder(options.save_examples)
    methods = _methods(options)
    expect_numbers(methods, subject.records)
    for targets, variant in attacked_together(subject, options):
        *earlier, newest = (
            threat_model(options, subject, target, options.known_labels) for target in targets
        )
        threat = replace(newest, earlier=tuple(earlier))
        counts = {text: _count(method, options, subject) for text, method in methods.items()}
        most = options.model_copy(update={"batches": max(counts.values())})
        campaign = campaign_of(most, subject, threat, progress)
        yield from _of_methods(audit, subject, methods, counts, campaign, variant)


def attacked_rounds(subject: Subject, options: UpdateOptions) -> list[tuple[Target, Variant]]:
    """Select the checkpoints to attack: the newest alone unless all are asked for."""
    return list(by_round(subject))[0 if options.every_round else -1 :]


def attacked_together(
    subject: Subject, options: RoundsOptions
) -> list[tuple[tuple[Target, ...], Variant]]:
    """Group the checkpoints, oldest first, by the updates that an attack gets together.

    They are one at a time; with ``joint_rounds`` all, and each alone only if every round is asked
    for, with its number as the variant.

    Raises:
        UsageError: there is one checkpoint alone, or a captured update, for a joint attack.
    """
    alone: list[tuple[tuple[Target, ...], Variant]]
    alone = [((target,), variant) for target, variant in attacked_rounds(subject, options)]
    if not options.joint_rounds:
        return alone
    if len(subject.targets) < 2:
        raise UsageError("--joint-rounds: needs several rounds; repeat --checkpoint, oldest first")
    if options.update is not None:
        raise UsageError("--joint-rounds: --update holds one update; leave one of both out")
    numbered = [(targets, variant or {"round": len(alone)}) for targets, variant in alone]
    return [*(numbered if options.every_round else ()), (subject.targets, {})]


def threat_model(
    options: AttackOptions,
    subject: Subject,
    target: Target,
    known_labels: bool = False,
) -> ThreatModel:
    """Describe how the attacked clients make their updates, and the attacker's knowledge.

    Raises:
        UsageError: options contradict each other or the defenses.
    """
    sharing = options.sharing(subject.defenses, subject.hidden)
    return ThreatModel(target, sharing, subject.layers, known_labels)


def campaign_of(
    options: BatchOptions, subject: Subject, threat: ThreatModel, progress: Progress
) -> Campaign:
    """Make the updates that are attacked.

    Raises:
        UsageError: there are no such records, or too few.
        CheckpointError: a captured update is refused.
    """
    batches = options.drawn(subject.samples)
    choice = Choice(options.batch_size, batches, options.records, options.update, options.rate)
    return Campaign.prepare(subject, choice, threat, progress)


def _methods(options: ReconstructOptions) -> dict[str, Method]:
    named = options.method
    flags = options.flags(named=bool(named))
    return load_methods(named or AUTOMATIC, flags, options.restarts)


def _of_methods(
    audit: AttackReconstruct,
    subject: Subject,
    methods: Mapping[str, Method],
    counts: Mapping[str, int],
    every: Campaign,
    variant: Variant,
) -> Iterator[Measurement]:
    results: dict[str, list[Measurement]] = {}
    errors: dict[str, list[RecordErrors]] = {}
    reasons: dict[str, str] = {}
    records = subject.records
    cut = cut_of_input(FunctionalModel.of(subject.target), records.inputs, records.labels)
    for text, method in methods.items():
        campaign = every.first(counts[text])
        try:
            score = partial(attempt, scored=campaign.scored)
            answers = campaign.outcomes(*attacking(score, method))
        except NotApplicable as error:
            reasons[text] = str(error)
            continue
        attempts = [answer for answer in answers if not isinstance(answer, NotApplicable)]
        if audit.options.save_examples is not None:
            name = example_name(text.partition(":")[0], variant)
            _draw(audit.options.save_examples, name, campaign, answers)
        facts = {**campaign.facts, "method": text, "attack": attack_facts(attempts)}
        if refused := [str(answer) for answer in answers if isinstance(answer, NotApplicable)]:
            facts["updates_refused"] = len(refused)
            facts["refused_because"] = list[JsonValue](sorted(set(refused)))
        if noise := _noise(campaign, answers):
            facts["noise"] = noise
        if cut is not None:
            facts[CUT_DERIVATIVE] = cut
        result = MethodAttempts(attempts, campaign.batch, audit.options.success)
        errors[text] = record_errors(campaign, answers) if campaign.scored else []
        results[text] = [
            row.with_details(closest_of([errors[text]])) if row.metric == "relative_error" else row
            for row in result.rows(Rows(type(audit)), facts)
        ]
    if not results:
        listed = "; ".join(f"{text}: {why}" for text, why in reasons.items())
        raise NotApplicable(listed if len(methods) > 1 else next(iter(reasons.values())))
    closest = closest_of(list(errors.values()))
    yield from _headline(audit, list(results.values()), variant, closest)
    for text, rows in results.items() if len(methods) > 1 else ():
        for row in rows:
            yield row.model_copy(update={"variant": {**variant, "method": text}})
    for text, why in reasons.items():
        yield from Rows(type(audit), {**variant, "method": text}).skipped(why, METRICS)


def _headline(
    audit: AttackReconstruct,
    results: Sequence[Sequence[Measurement]],
    variant: Variant,
    closest: Details,
) -> Iterator[Measurement]:
    """Choose the method with the closest reconstructions as the headline, and name it."""
    several: Details = {RISKIEST_BY: ["method"]} if len(results) > 1 else {}
    for row in min(results, key=_distance):
        judged = row.metric in audit.headline and row.status == "measured"
        more = closest if judged and closest else several
        yield row.model_copy(update={"variant": variant, "details": {**row.details, **more}})


@dataclass(frozen=True)
class RecordErrors:
    """Relative errors of the closest record of an update, and of another update's records.

    ``own`` is infinite where the attack shows nothing; ``other`` is what chance gives.
    """

    own: float = math.inf
    other: float = math.inf


def record_errors(
    campaign: Campaign, answers: Sequence[Attempt | NotApplicable]
) -> list[RecordErrors]:
    """Compute the errors of the closest record of each update, and of the next update's."""
    found = []
    for number, made in enumerate(answers):
        answer = None if isinstance(made, NotApplicable) else made.candidates.records
        if answer is None:
            found.append(RecordErrors())
            continue
        own, other = (campaign.drawn[place % len(answers)].inputs for place in (number, number + 1))
        rebuilt = answer.detach().cpu().double()[None]
        errors = (
            float(relative_error(truth, assigned(truth, rebuilt)).min())
            for truth in (own.cpu().double(), other.cpu().double())
        )
        found.append(RecordErrors(*errors) if len(answers) > 1 else RecordErrors(next(errors)))
    return found


def closest_of(errors: Sequence[Sequence[RecordErrors]]) -> Details:
    """Return the closest errors of each update over all methods, as details of the headline."""
    known = [each for each in errors if each]
    if not known:
        return {}
    updates = [
        [each[number] for each in known if number < len(each)]
        for number in range(max(map(len, known)))
    ]
    return {
        CLOSEST: [_number(min(each.own for each in update)) for update in updates],
        CHANCE: [_number(min(each.other for each in update)) for update in updates],
    }


def _distance(rows: Sequence[Measurement]) -> float:
    errors = (row.number for row in rows if row.metric == "relative_error")
    return next((error for error in errors if error is not None), math.inf)


def _noise(campaign: Campaign, answers: Sequence[Attempt | NotApplicable]) -> JsonValue:
    """Evaluate conditions (2) and (3) of Fan et al. 2020 for updates solved in closed form.

    None where nothing was in front of the update, or the attack solves for no layer.
    """
    conditions: list[JsonValue] = []
    for observed, made in zip(campaign.observed, answers, strict=True):
        if isinstance(made, NotApplicable):
            continue
        layer, update = made.candidates.details.get("layer"), observed.view.update
        if observed.clean is None or not isinstance(layer, str):
            return None
        conditions.append({"layer": layer, **under_noise(observed.clean, update, layer)})
    return conditions


def _draw(
    folder: Path, name: str, campaign: Campaign, answers: Sequence[Attempt | NotApplicable]
) -> None:
    for index, (observed, made) in enumerate(zip(campaign.observed, answers, strict=True)):
        answer = None if isinstance(made, NotApplicable) else answer_of(made, observed)
        if answer is not None:
            file = f"{name}-{index + 1:02d}"
            draw_examples(folder, file, observed.records if campaign.scored else None, answer)
