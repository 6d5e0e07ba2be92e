"""Rebuilds all participants' records, and matches them with the true records."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction import Method, expect_numbers, load_methods
from gradaudit.attacks.reconstruction.attempts import rebuilt
from gradaudit.attacks.reconstruction.campaign import Campaign, Choice, attacking
from gradaudit.attacks.reconstruction.closeness import own_items, trace
from gradaudit.audits.attack_reconstruct.measure import threat_model
from gradaudit.audits.attack_reconstruct.options import AUTOMATIC
from gradaudit.audits.attack_tracing import AttackTracing, TracingOptions
from gradaudit.audits.rows import Details, Rows
from gradaudit.core.randomness import number as derived_seed
from gradaudit.core.statistics.intervals import clustered
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject


def gradients(audit: AttackTracing, subject: Subject) -> float:
    """Count the passes of the attacks on all participants' updates.

    By the method that will do: the first one, where one record stands behind an update.
    """
    options, size = audit.options, audit.options.batch_size
    likely = list(_methods(options, subject).values())[0 if size == 1 else -1]
    attacks = options.participants * options.updates * options.repeats
    model = FunctionalModel.of(subject.target, dtype=torch.float32)
    calls = likely.calls_on(model, model.cast(subject.records.inputs[:1])) * options.steps(size)
    return attacks * (likely.steps() * options.passes(size) + subject.waiting(calls))


def run(audit: AttackTracing, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Rebuild all participants' records, and trace them.

    Raises:
        NotApplicable: the method does not apply, there are too few records, or updates are only
            seen as means.
        UsageError: an option is wrong for the records.
    """
    options = audit.options
    if options.others:
        raise NotApplicable(
            f"only the mean of {1 + options.others} clients' updates is seen, so that none can be "
            "traced to its participant; leave out --others"
        )
    expect_numbers(_methods(options, subject), subject.records)
    hits: list[NDArray[np.bool_]] = []
    facts: list[Details] = []
    for number in range(options.repeats):
        traced, of_attack = _repetition(options, subject, number, progress)
        hits.append(traced)
        facts.append(of_attack)
    rows = Rows(type(audit), facts=facts[0])
    of_owners, of_items = np.stack(hits, axis=1)
    yield _row(options, of_owners, rows)
    yield _row(options, of_items, rows.of({"identity": "item"}))


def _methods(options: TracingOptions, subject: Subject) -> dict[str, Method]:
    """Select the named method, or the methods to try until one applies."""
    tried = ["dlg"] if subject.defenses else AUTOMATIC
    named = options.method
    flags = options.flags(named=bool(named))
    return load_methods([named] if named else tried, flags, options.restarts)


def _answers(campaign: Campaign, methods: dict[str, Method]) -> tuple[str, list[Tensor]]:
    """Attack with the first method that applies; NaN where it has no answer to an update."""
    reasons: list[str] = []
    for text, method in methods.items():
        try:
            answers = campaign.outcomes(*attacking(rebuilt, method))
        except NotApplicable as why:
            reasons.append(str(why))
            continue
        return text, [
            torch.full_like(batch.inputs, torch.nan, device="cpu")
            if isinstance(answer, NotApplicable)
            else answer
            for batch, answer in zip(campaign.drawn, answers, strict=True)
        ]
    raise NotApplicable("; ".join(reasons))


def _repetition(
    options: TracingOptions, subject: Subject, number: int, progress: Progress
) -> tuple[NDArray[np.bool_], Details]:
    """Compute whether each record was traced to its participant, and to itself: (2, records)."""
    campaign = _campaign(options, subject, number, progress)
    method, answers = _answers(campaign, _methods(options, subject))
    truth = torch.cat([batch.inputs.cpu() for batch in campaign.drawn])
    items = own_items(truth, torch.cat(answers), len(answers))
    owners = np.arange(len(truth)) // (options.updates * campaign.batch)
    traced = trace(truth, items, owners)
    hits = np.stack([traced.participants == owners, traced.items == np.arange(len(truth))])
    diverged = int((~items.flatten(1).isfinite().all(dim=1)).sum())
    return hits, {**campaign.facts, "method": method, "diverged": diverged}


def _campaign(
    options: TracingOptions, subject: Subject, number: int, progress: Progress
) -> Campaign:
    needed = options.participants * options.updates * options.batch_size
    if needed > len(subject.records):
        raise NotApplicable(
            f"--participants {options.participants}: their updates take {needed} records, the "
            f"data has {len(subject.records)}"
        )
    choice = Choice(options.batch_size, options.participants * options.updates)
    threat = threat_model(options, subject, subject.target, options.known_labels)
    again = replace(subject, seed=derived_seed(subject.seed, "tracing", number), samples=None)
    return Campaign.prepare(again, choice, threat, progress)


def _row(options: TracingOptions, hits: NDArray[np.bool_], rows: Rows) -> Measurement:
    missed = (~hits).reshape(len(hits) * options.participants * options.updates, -1)
    sizes = np.full(len(missed), float(missed.shape[1]))
    value, interval = clustered(missed.mean(axis=1), sizes)
    repetitions: list[JsonValue] = [float(share) for share in (~hits).mean(axis=1)]
    return rows.measured(
        "tracing_distance",
        value,
        interval=interval,
        n=hits.size,
        details={
            "participants": options.participants,
            "repetitions": repetitions,
            "by_guessing": 1 - 1 / options.participants,
        },
    )
