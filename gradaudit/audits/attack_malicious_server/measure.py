"""Rows of the check of a server's model, from a subject's newest model and its records."""

from collections.abc import Iterator

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.attack_malicious_server import AttackMaliciousServer
from gradaudit.audits.attack_malicious_server.check import (
    LIMITS,
    Signs,
    State,
    expect,
    moves,
    signs_of,
)
from gradaudit.audits.attack_malicious_server.published import compare
from gradaudit.audits.attack_malicious_server.sensing import LayerGradients, gradients_of_records
from gradaudit.audits.rows import Rows
from gradaudit.core.statistics.intervals import student
from gradaudit.models.checkpoint import load_checkpoint
from gradaudit.models.target import Target
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject

DOMINATED = 0.9
"""Share of a row's gradient from which it is one record's."""
_RECORDS = 128
_FEW = "--batch-size {}: only {} records are looked at"
_NO_GRADIENT = "no record has a gradient here"
_NO_SIGN = "nothing can be known about such a layer, whose gradient is zero"
_NO_ROUND = "needs the round before: name both checkpoints with -c, oldest first"
_NO_PUBLISHED = "no published weights are named to compare the model with (--published)"
_NO_OTHER = "there is no other layer, and no earlier round, to compare its move with"


def record_shares(norms: Tensor, batch: int) -> Tensor:
    """Compute max_i ‖g_i‖ / Σ_i ‖g_i‖ of each batch, between 1/records and 1.

    Args:
        norms: (records, …) ‖g_i‖, of a layer or of each of its rows.
        batch: records in a batch; those that make no whole batch are left out.

    Returns:
        (batches, …); NaN where no record has a gradient.
    """
    kept = norms[: len(norms) // batch * batch]
    batches = kept.reshape(-1, batch, *norms.shape[1:])
    return batches.amax(dim=1) / batches.sum(dim=1)


def dominated(rows: Tensor, batch: int) -> float | None:
    """Compute the share of rows with a gradient whose gradient comes from one record.

    Args:
        rows: (records, rows) of each row's norm.
        batch: records in a batch.

    Returns:
        The mean over batches and rows; None where no row has a gradient.
    """
    shares = record_shares(rows, batch)
    known = shares[~torch.isnan(shares)]
    return float((known >= DOMINATED).double().mean()) if len(known) else None


def gradients(audit: AttackMaliciousServer, subject: Subject) -> float:
    """Count one and a half passes for each record's gradient and its parts in each layer."""
    records = subject.samples or max(_RECORDS, audit.options.batch_size)
    return 1.5 * min(records, len(subject.records))


def run(
    audit: AttackMaliciousServer, subject: Subject, progress: Progress
) -> Iterator[Measurement]:
    """Yield rows of the frozen weights and of every layer; older checkpoints are earlier rounds.

    Raises:
        CheckpointError: the published weights are refused, or fit nothing in the model.
        NotApplicable: there are too few records, or they have no gradients of their own.
        AuditError: the model cannot be run on the records.
    """
    yield _published_row(Rows(type(audit)), subject.target, audit.options.published)
    batch = audit.options.batch_size
    records = expect(subject.sample(max(_RECORDS, batch)))
    with progress.task("malicious server", 1) as advance:
        senses = gradients_of_records(subject.target, records, subject.layers, subject.memory)
        advance(1)
    before = [parameters(target) for target in subject.targets[:-1]]
    signs = signs_of(subject.target, senses, before)
    rows = Rows(type(audit), facts={"records": len(records)})
    for layer in subject.layers:
        yield _share_row(rows, layer.name, senses.layers[layer.name], batch)
        yield from _score_row(rows, layer.name, signs[layer.name], len(records))
        yield from _movement_row(rows, layer.name, signs[layer.name], before, subject.target)


def parameters(target: Target) -> State:
    """A target's parameters by name, on the CPU."""
    return {name: p.detach().cpu() for name, p in target.model.named_parameters()}


def _published_row(rows: Rows, target: Target, published: str | None) -> Measurement:
    if published is None:
        return next(rows.skipped(_NO_PUBLISHED, ["altered_weights"]))
    loaded = load_checkpoint(published)
    found = compare(target.model, loaded)
    source: dict[str, JsonValue] = {"file": loaded.record.file, "sha256": loaded.record.sha256}
    details = {**found.described(), "published": source}
    return rows.measured("altered_weights", found.share, n=found.compared, details=details)


def _share_row(rows: Rows, layer: str, sensed: LayerGradients, batch: int) -> Measurement:
    if batch > len(sensed.norms):
        why = _FEW.format(batch, len(sensed.norms))
        return next(rows.skipped(why, ["record_share"], [layer]))
    shares = record_shares(sensed.norms, batch)
    known = shares[~torch.isnan(shares)].numpy()
    if not len(known):
        return next(rows.skipped(_NO_GRADIENT, ["record_share"], [layer]))
    alone = None if sensed.rows is None else dominated(sensed.rows, batch)
    return rows.measured(
        "record_share",
        float(known.mean()),
        layer=layer,
        interval=student(known) if len(known) > 1 else None,
        n=len(known),
        details={"batch": batch, "largest": float(known.max()), "rows_of_one_record": alone},
    )


def _score_row(rows: Rows, layer: str, signs: Signs, records: int) -> Iterator[Measurement]:
    if signs.score is None:
        yield from rows.skipped(_NO_SIGN, ["imprint_score"], [layer])
        return
    limits: dict[str, JsonValue] = {name: LIMITS[name] for name in signs.found}
    details: dict[str, JsonValue] = {
        "sign": signs.strongest,
        "signs": dict[str, JsonValue](signs.found),
        "limits": limits,
    }
    yield rows.measured("imprint_score", signs.score, layer=layer, n=records, details=details)


def _movement_row(
    rows: Rows, layer: str, signs: Signs, before: list[State], target: Target
) -> Iterator[Measurement]:
    if signs.movement is None:
        why = _NO_OTHER if before else _NO_ROUND
        yield from rows.skipped(why, ["movement"], [layer])
        return
    moved = moves(before[-1], parameters(target))[layer]
    details: dict[str, JsonValue] = {"relative": moved, "rounds": len(before)}
    yield rows.measured("movement", signs.movement, layer=layer, details=details)
