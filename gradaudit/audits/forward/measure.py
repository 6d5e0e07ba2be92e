"""Information about the input in each layer's activations: from a target's records to rows."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradaudit.audits.base import AuditCost
from gradaudit.audits.forward import Forward
from gradaudit.audits.forward.activations import LOWER, UPPER, Activations, Pairs, information
from gradaudit.audits.rows import Rows, by_round
from gradaudit.errors import NotApplicable
from gradaudit.gradients.memory import column_blocks
from gradaudit.models.target import Target
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject, defenses_note

_RECORDS = 1000
_FEWEST = 3
_BYTES_A_PAIR = 16
_CEILING = 0.99
"""Share of log2 N from which records are too few to tell more: one in a hundred bits is left."""
_UNDEFENDED = "none applied: activations are not shared, and the weights are taken as they are"
_UNSEEN = "no call was seen that applies its parameters to records"
_NOT_FINITE = "its activations are not finite; look at the weights and the inputs"
_PASSES_A_RECORD = 0.5
_PREPARING = 5


def cost(audit: Forward, subject: Subject) -> AuditCost:
    """Forward passes in double precision."""
    records = min(subject.samples or _RECORDS, len(subject.records))
    rounds = len(subject.targets)
    return AuditCost(passes=_PASSES_A_RECORD * records * rounds, calls=_PREPARING * rounds)


def run(audit: Forward, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Rows of every shown layer; older checkpoints are the variants ``round``.

    Raises:
        NotApplicable: too few or too many records, or they have no activations of their own.
        AuditError: the model cannot be run on the records.
    """
    count, most = len(subject.sample(_RECORDS)), math.isqrt(subject.memory // _BYTES_A_PAIR)
    if count < _FEWEST:
        raise NotApplicable(
            f"{count} records cannot be told apart by much; look at {_FEWEST} or more "
            "(--samples, or more data)"
        )
    if count > most:
        raise NotApplicable(
            f"the distances between all pairs of {count:,} records do not fit into memory; "
            f"look at {most:,} or fewer (--samples)"
        )
    for target, variant in by_round(subject):
        rows = Rows(type(audit), variant)
        yield from _of_target(target, rows, audit.options.sigma2, subject, progress)


def _of_target(
    target: Target, rows: Rows, sigma2: float, subject: Subject, progress: Progress
) -> Iterator[Measurement]:
    records = subject.sample(_RECORDS)
    activations = Activations.of(
        target, subject.layers, records.inputs, records.labels, subject.memory
    )
    widths = activations.widths
    yield from rows.skipped(
        _UNSEEN, layers=[layer.name for layer in subject.layers if layer.name not in widths]
    )
    notes = defenses_note(subject, _UNDEFENDED)
    pairs = Pairs(len(records))
    blocks = column_blocks(activations.stream, widths, len(records), subject.memory // 2)
    with progress.task("forward", len(widths)) as advance:
        for piece, block in blocks:
            pairs.add(block)
            if piece.stop == widths[piece.layer]:
                seen = rows.of({}, {"elements": piece.stop, "sigma2": sigma2, **notes})
                yield from rows_of(piece.layer, pairs.squared_distances(), seen, sigma2)
                pairs = Pairs(len(records))
                advance(1)


def rows_of(
    layer: str, distances: NDArray[np.float64], rows: Rows, sigma2: float
) -> Iterator[Measurement]:
    """Rows of one layer, whose activations lie so far apart, (records, records) squared."""
    if not np.isfinite(distances).all():
        yield from rows.failed(_NOT_FINITE, layers=[layer])
        return
    upper, lower = (information(distances, sigma2, alpha) for alpha in (UPPER, LOWER))
    count = len(distances)
    most = math.log2(count)
    spread = float(distances.sum() / (count * (count - 1)))
    alone = (
        f"all {count:,} records lie apart at a noise of {sigma2:g}: the number is its ceiling, "
        f"log2 {count:,}; look at more records (--samples) or through more noise (--sigma2)"
    )
    for metric, bound, unit in (
        ("information_upper", upper, 1.0),
        ("information_lower", lower, 1.0),
        ("fraction", upper, most),
    ):
        low, high = bound.interval
        at_ceiling = bound.bits >= _CEILING * most
        yield rows.measured(
            metric,
            bound.bits / unit,
            layer=layer,
            interval=(low / unit, high / unit),
            n=count,
            details={
                "most": most,
                "mean_squared_distance": spread,
                **({"ceiling": True, "warning": alone} if at_ceiling else {}),
            },
        )
