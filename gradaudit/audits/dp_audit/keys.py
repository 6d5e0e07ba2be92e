"""Rows that say of every array of a client's update what becomes of it."""

from collections.abc import Iterable, Iterator, Sequence

from pydantic import JsonValue

from gradaudit.audits.dp_audit.middleware.fates import Fate
from gradaudit.audits.dp_audit.middleware.payload import owner_of
from gradaudit.audits.rows import Details, Rows
from gradaudit.report import RISKIEST_BY, Measurement

BY_KEY = ("untouched", "norm_ratio")
NOT_BY_KEY = (
    "what becomes of each array is looked at of middleware alone (--mechanism "
    "flower:MODULE:OBJECT, nvflare:MODULE:CLASS)"
)
NOT_TRAINED = "training changed nothing in it"


def key_rows(
    fates: Sequence[Fate],
    layers: Sequence[str],
    every_layer: Sequence[str],
    rows: Rows,
) -> Iterator[Measurement]:
    """A row of each array, below the layer that holds it, and the riskiest as the layer's headline.

    Args:
        fates: of all arrays that the model has; none of a mechanism that sees no arrays.
        layers: those that are looked at.
        every_layer: of the model; arrays of those not looked at get no row.
        rows: with what all rows share.
    """
    if not fates:
        yield from rows.skipped(NOT_BY_KEY, BY_KEY, layers)
        return
    owned = {fate.key: owner_of(fate.key, every_layer) for fate in fates}
    shown = [fate for fate in fates if owned[fate.key] in (None, *layers)]
    for layer in layers:
        yield from _headlines([fate for fate in shown if owned[fate.key] == layer], layer, rows)
    for fate in shown:
        yield from _of(fate, owned[fate.key], rows.of({"key": fate.key}))


def _headlines(fates: list[Fate], layer: str, rows: Rows) -> Iterator[Measurement]:
    if not fates:
        yield from rows.skipped("no array of it is sent (--hide, --unsent)", BY_KEY, [layer])
        return
    graver = sorted(fates, key=lambda fate: (fate.carries_on, fate.ratio or 0.0), reverse=True)
    for row in _of(graver[0], layer, rows):
        more: Details = {} if row.status != "measured" else {RISKIEST_BY: ["key"]}
        yield row.with_details(more)


def _of(fate: Fate, layer: str | None, rows: Rows) -> Iterable[Measurement]:
    details: dict[str, JsonValue] = {
        "key": fate.key,
        "kind": fate.kind,
        "norm_before": fate.before,
        "norm_after": fate.after,
        "noise": fate.noise,
        "sent": fate.sent,
        "clipped": fate.clipped,
        "looks": fate.looks,
    }
    value = float(fate.carries_on)
    yield rows.measured("untouched", value, layer=layer, details={**details, "says": fate.words})
    if fate.ratio is None:
        yield from rows.skipped(NOT_TRAINED, ["norm_ratio"], [layer], details)
    else:
        yield rows.measured("norm_ratio", fate.ratio, layer=layer, details=details)
