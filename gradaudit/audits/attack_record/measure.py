"""Scores records' presence in updates, layer by layer and in the whole update."""

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.attack_record import AttackRecord
from gradaudit.audits.attack_record.likelihood_ratio import (
    RIDGES,
    Placed,
    PresenceScores,
    auroc_of_pairs,
)
from gradaudit.audits.attack_record.presence_rows import PresenceRows
from gradaudit.audits.attack_record.record_game import RecordGame, records_used
from gradaudit.audits.base import AuditCost
from gradaudit.errors import NotApplicable
from gradaudit.gradients.per_sample import PREPARING
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject

_PRODUCT = 2e-10
"""Seconds of a multiplication and addition in double precision, on a core of a usual machine."""
_PAIR = 4e-8
"""Seconds that a candidate at an update takes for each shrinkage."""


def cost(audit: AttackRecord, subject: Subject) -> AuditCost:
    """Gradients of all records that are dealt out, and inner products of each layer's.

    Raises:
        NotApplicable: there are too few records.
        UsageError: a record is asked about that the data does not have.
    """
    options = audit.options
    fitted, candidates, elements = records_used(options, subject)
    local = options.trained(3 * options.updates, options.batch_size)
    products = (fitted + candidates) * (fitted + 2 * options.updates)
    seen = sum(min(layer.parameters, elements) for layer in subject.layers)
    pairs = 2 * options.updates * candidates * len(RIDGES) * (1 + len(subject.layers))
    return AuditCost(
        passes=fitted + candidates + local.passes + 16 * options.records_behind,
        calls=2 * PREPARING + local.calls + 16,
        seconds=_PRODUCT * products * seen + _PAIR * pairs,
        double=False,
    )


def run(audit: AttackRecord, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Play the game.

    Raises:
        NotApplicable: there are too few records, or they have no gradients of their own.
        UsageError: an option is wrong for the records.
        CheckpointError: a captured update is refused.
    """
    game = RecordGame.of(audit.options, subject)
    if not game.layers:
        raise NotApplicable("the captured update holds none of the layers that are looked at")
    rows, whole = PresenceRows(game), None
    normal: list[PresenceScores] = []
    each: list[PresenceScores] = []
    with progress.task("attack record", len(game.layers)) as advance:
        for layer, products, updates in game.products():
            whole = products if whole is None else whole + products
            normal.append(PresenceScores.chosen(products, game.placed))
            near = rows.spans.scores(layer, updates)
            each.append(PresenceScores.best([normal[-1], *([near] if near else [])]))
            yield from rows.scores(layer.name, each[-1])
            advance(1)
    assert whole is not None
    tried = [PresenceScores.chosen(whole, game.placed), _summed(normal, game.placed), *each]
    together = PresenceScores.best(tried)
    yield from rows.scores(None, together)
    yield from rows.not_seen()
    yield from rows.certificates()
    yield from rows.given({None: together, **dict(zip(rows.names, each, strict=True))})


def _summed(each: Sequence[PresenceScores], placed: Placed) -> PresenceScores:
    """The sum of all layers' scores."""
    total = np.sum([layer.scores for layer in each], axis=0)
    words: dict[str, JsonValue] = {"statistic": "sum of layers'"}
    return PresenceScores(total, words, auroc_of_pairs(total, placed.shadow))
