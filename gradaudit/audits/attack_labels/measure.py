"""Compares the labels that each method recovers from some updates with the true labels."""

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction import Method, load_methods
from gradaudit.attacks.reconstruction.attempts import recovered_labels
from gradaudit.attacks.reconstruction.campaign import Campaign, attacking
from gradaudit.attacks.reconstruction.closeness import categorical_distance
from gradaudit.attacks.reconstruction.matching.unknowns import UnknownLabels
from gradaudit.audits.attack_labels import AttackLabels, LabelsOptions
from gradaudit.audits.attack_reconstruct.measure import (
    attacked_rounds,
    campaign_of,
    threat_model,
)
from gradaudit.audits.rows import NO_TRUTH, Details, Rows
from gradaudit.core.statistics.intervals import clustered
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject


def gradients(audit: AttackLabels, subject: Subject) -> float:
    """Count the passes of the restarts on all batches; reading labels off an update takes two."""
    options, size = audit.options, audit.options.batch_size
    searching = [m for m in _methods(options).values() if not m.reads_labels]
    passes = (2.0 + sum(m.steps() for m in searching)) * options.passes(size)
    calls = sum(m.calls() for m in searching) * options.steps(size) * (1 + options.others)
    return options.count(subject) * (passes + subject.waiting(calls))


def run(audit: AttackLabels, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Attack; older checkpoints are the variants ``round``, methods the variants ``method``.

    Raises:
        NotApplicable: no method applies, or the labels are real numbers.
        UsageError: an option is wrong for these records.
        CheckpointError: a captured update is refused.
    """
    methods = _methods(audit.options)
    for target, variant in attacked_rounds(subject, audit.options):
        threat = threat_model(audit.options, subject, target)
        campaign = campaign_of(audit.options, subject, threat, progress)
        yield from _of_methods(methods, campaign, Rows(type(audit), variant))


def _methods(options: LabelsOptions) -> dict[str, Method]:
    named = options.method
    flags = options.flags(named=bool(named))
    reading = "idlg" if options.batch_size == 1 else "inverting-gradients"
    return load_methods(named or ("dlg", reading), flags, options.restarts)


def _of_methods(
    methods: dict[str, Method], campaign: Campaign, rows: Rows
) -> Iterator[Measurement]:
    measured: dict[str, Measurement] = {}
    reasons: dict[str, str] = {}
    for text, method in methods.items():
        try:
            answers = campaign.outcomes(*attacking(recovered_labels, method))
        except NotApplicable as error:
            reasons[text] = error.why if isinstance(error, UnknownLabels) else str(error)
        else:
            nothing = None, None
            recovered = [nothing if isinstance(a, NotApplicable) else a for a in answers]
            facts: Details = {**campaign.facts, "method": text}
            measured[text] = _row(campaign, recovered, rows.of({}, facts))
    if not measured:
        raise NotApplicable("; ".join(f"{text}: {why}" for text, why in reasons.items()))
    headline = next(iter(measured.values()))
    if campaign.scored:
        headline = min(measured.values(), key=lambda row: row.value or 0.0)
    else:
        yield from rows.skipped(NO_TRUTH, ["membership_distance"])
    yield headline
    for text, row in measured.items() if len(methods) > 1 else ():
        yield row.model_copy(update={"variant": {**row.variant, "method": text}})
    for text, why in reasons.items():
        yield from rows.of({"method": text}).skipped(why, [headline.metric])


def _row(
    campaign: Campaign, recovered: Sequence[tuple[Tensor | None, float | None]], rows: Rows
) -> Measurement:
    if campaign.scored:
        return _distance(campaign, [labels for labels, _ in recovered], rows)
    (labels, score), *_ = recovered
    named: JsonValue = None if labels is None else labels.tolist()
    return rows.measured(
        "labels_named",
        0.0 if labels is None else float(len(labels)),
        details={"labels": named, "attacker_score": score},
    )


def _distance(campaign: Campaign, recovered: Sequence[Tensor | None], rows: Rows) -> Measurement:
    distances = [
        categorical_distance(
            batch.labels.cpu().numpy(), None if labels is None else labels.cpu().numpy()
        )
        for batch, labels in zip(campaign.drawn, recovered, strict=True)
    ]
    updates = len(distances)
    value, interval = clustered(np.array(distances), np.full(updates, float(campaign.batch)))
    return rows.measured(
        "membership_distance",
        value,
        interval=interval,
        n=updates * campaign.batch,
        details={"updates": updates},
    )
