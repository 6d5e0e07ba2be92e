"""Reconstruction: every method attacks the updates of some batches, and its answers are scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.layerwise.closed_form import under_noise
from gradaudit.attacks.layerwise.setting import prospects
from gradaudit.attacks.reconstruction import Method, load_methods
from gradaudit.attacks.reconstruction.attempts import Attempt, answer_of, attempt
from gradaudit.attacks.reconstruction.campaign import Campaign, Choice
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.attacks.reconstruction.pictures import draw_examples, expect_folder
from gradaudit.attacks.reconstruction.unknowns import read_start
from gradaudit.audits.attack_reconstruct.options import (
    AUTOMATIC,
    AttackOptions,
    BatchOptions,
    ReconstructOptions,
)
from gradaudit.audits.attack_reconstruct.results import METRICS, Result, attack_facts
from gradaudit.audits.base import Cost
from gradaudit.audits.rows import Rows, by_round
from gradaudit.errors import NotApplicable
from gradaudit.models.target import Subject, Target
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant
from gradaudit.sharing.protocol import SharingProtocol

if TYPE_CHECKING:
    from gradaudit.audits.attack_reconstruct import AttackReconstruct

ENOUGH = 20
"""Updates, below which an interval over them is not to be trusted."""


def cost(audit: AttackReconstruct, subject: Subject) -> Cost:
    """What all restarts of all methods on all batches cost at most."""
    options = audit.options
    methods, updates = _methods(options).values(), options.count(subject)
    steps = sum(m.steps(options.restarts if m.restarts else 1) for m in methods)
    return Cost(steps * options.batch_size * updates, sum(m.calls() for m in methods) * updates)


def run(audit: AttackReconstruct, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Attack; older checkpoints are the variants ``round``, methods the variants ``method``.

    Raises:
        NotApplicable: no method applies.
        UsageError: an option is wrong for these records, or no method takes it.
        CheckpointError: a captured update is refused.
    """
    options = audit.options
    if options.save_examples is not None:
        expect_folder(options.save_examples)
    methods = _methods(options)
    start = None if options.start is None else read_start(options.start)
    for target, variant in attacked_rounds(subject, options):
        threat = threat_model(options, subject, target, options.known_labels, start)
        campaign = campaign_of(options, subject, threat)
        yield from _of_methods(audit, methods, campaign, variant, progress)


def attacked_rounds(subject: Subject, options: BatchOptions) -> list[tuple[Target, Variant]]:
    """The checkpoints that are attacked: the newest alone unless all are asked for."""
    return list(by_round(subject))[0 if options.every_round else -1 :]


def threat_model(
    options: AttackOptions,
    subject: Subject,
    target: Target,
    known_labels: bool = False,
    start: Tensor | None = None,
) -> ThreatModel:
    """How the attacked clients make their updates, and what the attacker knows.

    Raises:
        UsageError: options contradict each other or the defenses.
    """
    sharing = SharingProtocol(
        defenses=subject.defenses,
        algorithm=options.algorithm,
        epochs=options.epochs,
        rate=options.rate or 0.1,
        local_batch=options.local_batch,
        hidden=subject.hidden,
    )
    return ThreatModel(target, sharing, subject.layers, known_labels, start)


def campaign_of(options: BatchOptions, subject: Subject, threat: ThreatModel) -> Campaign:
    """The updates that are attacked.

    Raises:
        UsageError: there are no such records, or too few.
        CheckpointError: a captured update is refused.
    """
    batches = options.drawn(subject.samples)
    choice = Choice(options.batch_size, batches, options.records, options.update, options.rate)
    return Campaign.prepare(subject, choice, threat, options.restarts)


def doubts(updates: int, options: str) -> str:
    """Why an interval over so many updates is not to be trusted; empty where it is."""
    if updates >= ENOUGH:
        return ""
    return f"the interval is over {updates} updates, and takes {ENOUGH}: raise {options}"


def _methods(options: ReconstructOptions) -> dict[str, Method]:
    named = options.method
    return load_methods(named or AUTOMATIC, options.flags(named=bool(named)))


def _of_methods(
    audit: AttackReconstruct,
    methods: Mapping[str, Method],
    campaign: Campaign,
    variant: Variant,
    progress: Progress,
) -> Iterator[Measurement]:
    results: dict[str, list[Measurement]] = {}
    reasons: dict[str, str] = {}
    for text, method in methods.items():
        try:
            attempts = campaign.outcomes(partial(attempt, scored=campaign.scored), method, progress)
        except NotApplicable as error:
            reasons[text] = str(error)
            continue
        if audit.options.save_examples is not None:
            _draw(audit.options.save_examples, text, campaign, attempts)
        facts = {**campaign.facts, "method": text, "attack": attack_facts(attempts)}
        if noise := _noise(campaign, attempts):
            facts["noise"] = noise
        result = Result(attempts, campaign.batch, audit.options.success)
        results[text] = list(result.rows(Rows(type(audit)), facts))
    if not results:
        listed = "; ".join(f"{text}: {why}" for text, why in reasons.items())
        raise NotApplicable(listed if len(methods) > 1 else next(iter(reasons.values())))
    yield from _headline(audit, list(results.values()), campaign, variant)
    for text, rows in results.items() if len(methods) > 1 else ():
        for row in rows:
            yield row.model_copy(update={"variant": {**variant, "method": text}})
    for text, why in reasons.items():
        yield from Rows(type(audit), {**variant, "method": text}).skipped(why, METRICS)


def _headline(
    audit: AttackReconstruct,
    results: Sequence[Sequence[Measurement]],
    campaign: Campaign,
    variant: Variant,
) -> Iterator[Measurement]:
    """Of each metric the method that came closest; its name stands in the details."""
    first = campaign.observed[0]
    could = prospects(first.view, first.records[:1], first.labels[:1], campaign.seed)
    for rows in zip(*results, strict=True):
        row = _closest(audit, rows)
        more = {"layer_by_layer": could} if row.metric in audit.headline else {}
        yield row.model_copy(update={"variant": variant, "details": {**row.details, **more}})


def _closest(audit: AttackReconstruct, rows: Sequence[Measurement]) -> Measurement:
    measured = [row for row in rows if row.number is not None]
    (metric,) = [metric for metric in audit.metrics if metric.id == rows[0].metric]
    if not measured or metric.riskier is None:
        return (measured or list(rows))[0]
    sign = 1 if metric.riskier == "higher" else -1
    return max(measured, key=lambda row: sign * (row.number or 0.0))


def _noise(campaign: Campaign, attempts: Sequence[Attempt]) -> JsonValue:
    """Conditions (2) and (3) of Fan et al. 2020 of every update that the closed form solved.

    None where nothing was in front of the update, or the attack solves for no layer.
    """
    conditions: list[JsonValue] = []
    for observed, made in zip(campaign.observed, attempts, strict=True):
        layer, update = made.candidates.details.get("layer"), observed.view.update
        if observed.clean is None or not isinstance(layer, str):
            return None
        conditions.append({"layer": layer, **under_noise(observed.clean, update, layer)})
    return conditions


def _draw(folder: Path, text: str, campaign: Campaign, attempts: Sequence[Attempt]) -> None:
    """Pictures of the answers of one method, originals beside them."""
    for index, (observed, made) in enumerate(zip(campaign.observed, attempts, strict=True)):
        answer = answer_of(made, observed)
        if answer is not None:
            name = f"{text.partition(':')[0]}-{index + 1:02d}"
            draw_examples(folder, name, observed.records if campaign.scored else None, answer)
