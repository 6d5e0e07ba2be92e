"""What middleware does to each array of an update."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.dp_audit.game.hypotheses import CommonNoise, Hypotheses, reproducible
from gradaudit.audits.dp_audit.game.missing_noise import DegenerateVerdict
from gradaudit.audits.dp_audit.middleware import Middleware
from gradaudit.audits.dp_audit.middleware.distance import Distance, draw_differences
from gradaudit.audits.dp_audit.middleware.payload import Exchange, Payload, owner_of
from gradaudit.audits.rows import Details, Rows
from gradaudit.core.randomness import Seed, sequence
from gradaudit.core.text import listed
from gradaudit.errors import AuditError
from gradaudit.report import RISKIEST_BY, Measurement, Variant

LOOKS = 16
"""Messages that are looked at."""
_CLIPPED = 1 - 1e-3
BY_KEY = ("untouched", "norm_ratio")
NOT_BY_KEY = (
    "what becomes of each array is looked at of middleware alone (--mechanism "
    "flower:MODULE:OBJECT, nvflare:MODULE:CLASS)"
)
LEAVES = "leaves as training made it"
NOT_TRAINED = "training changed nothing in it"


@dataclass(frozen=True)
class ArrayChange:
    """The change of one array of a client's update: how middleware changes it.

    Attributes:
        key: its name in the state dict.
        kind: type and shape.
        before: L2 norm of what training changed.
        left: L2 norm of what is left of that, without the noise.
        noise: deviation of the noise in an element, the root of its mean square.
        sent: whether it leaves at all.
        untouched: whether it leaves bit for bit as training made it, in every look.
        looks: messages that were looked at.
        exchange: what the arrays were that the middleware got.
    """

    key: str
    kind: str
    before: float
    left: Distance
    noise: float
    sent: bool
    untouched: bool
    looks: int = LOOKS
    exchange: Exchange = "numpy"

    @property
    def after(self) -> float:
        """The norm of what is left."""
        return self.left.value

    @property
    def ratio(self) -> float | None:
        """The share of the array's norm that is left; None where training changed nothing."""
        return self.after / self.before if self.before else None

    @property
    def carries_on(self) -> bool:
        """Whether the array's training change leaves exactly as it is."""
        return self.untouched and self.before > 0

    @property
    def words(self) -> str:
        """The change of the array, in words."""
        if not self.sent:
            return "does not leave"
        if self.before == 0:
            return NOT_TRAINED
        if self.untouched:
            return LEAVES
        clip = "clipped" if self.clipped else "not clipped"
        return f"{clip}, {'under noise' if self.noise else 'no noise'}"

    @property
    def details(self) -> dict[str, JsonValue]:
        """The change, as a report's row holds it."""
        return {
            "key": self.key,
            "exchange": self.exchange,
            "kind": self.kind,
            "norm_before": self.before,
            "norm_after": self.after,
            **({"norm_after_interval": [*self.left.interval]} if self.left.error else {}),
            "noise": self.noise,
            "sent": self.sent,
            "clipped": self.clipped,
            "looks": self.looks,
            "says": self.words,
        }

    @property
    def clipped(self) -> bool:
        """Whether the array's norm is shown to be smaller when it leaves than before."""
        return self.sent and Distance((self.before * _CLIPPED) ** 2).exceeds(self.left)


def array_changes(
    mechanism: Middleware, update: Tensor, seed: Seed, looks: int = LOOKS
) -> list[ArrayChange]:
    """Compare the arrays of an update (elements,) with two or more messages that left.

    Half the difference between what leaves of an update and of its opposite, under the same
    randomness, is what is left of it without additive noise; where no seed holds the noise fast it
    is estimated from as many differences as looks.

    Raises:
        AuditError: the middleware fails.
    """
    layout = mechanism.layout
    with reproducible(sequence(seed, "looks"), update.device):
        sent = [mechanism.sent(update.float()) for _ in range(looks)]
    released = torch.stack([layout.update(one) for one in sent]).double()
    deviation = released.std(dim=0)
    common = CommonNoise(mechanism, sequence(seed, "left"))
    draws = 1 if common.repeats(update[None]) else looks
    halves = draw_differences(common, update, -update, draws) / 2
    given = layout.payload(update.float(), mechanism.form)
    return [
        ArrayChange(
            key=key,
            kind=mechanism.kind(key),
            before=float(torch.linalg.vector_norm(update[at])),
            left=Distance.from_draws(halves[:, at]),
            noise=float(deviation[at].square().mean().sqrt()) if deviation[at].numel() else 0.0,
            sent=any(key in one.arrays for one in sent),
            untouched=all(as_it_was(key, given, one) for one in sent),
            looks=looks,
            exchange=mechanism.exchange,
        )
        for key, at in layout.places.items()
    ]


def as_it_was(key: str, given: Payload, sent: Payload) -> bool:
    """Whether an array leaves bit for bit unchanged."""
    return (
        given.form == sent.form
        and key in sent.arrays
        and np.array_equal(given.arrays[key], np.asarray(sent.arrays[key]))
    )


def array_changes_by_format(mechanism: Middleware, update: Tensor, seed: Seed) -> list[ArrayChange]:
    """Compare arrays as ``array_changes`` does, in each format that the framework sends.

    In a format other than the middleware's own that it fails on, nothing leaves.
    """
    found = array_changes(mechanism, update, seed)
    for exchange in mechanism.exchanges:
        if exchange != mechanism.exchange:
            with suppress(AuditError):
                found += array_changes(mechanism.exchanging(exchange), update, seed)
    return found


def verdict_of_untouched(
    mechanism: Middleware, hypotheses: Hypotheses, looked: list[ArrayChange]
) -> DegenerateVerdict | None:
    """Decide that ε is infinite where an array that differs between hypotheses leaves unchanged.

    That is said only where the mechanism's law says so. What unknown code left untouched in every
    look it may change the next time: there the game says how much its releases prove.
    """
    if not mechanism.lawful:
        return None
    batches = [batch[0] for batch in hypotheses.batches[:2]]
    null, other = (mechanism.layout.payload(batch, mechanism.form) for batch in batches)
    keys = [
        change.key
        for change in looked
        if change.untouched
        and not np.array_equal(null.arrays[change.key], other.arrays[change.key])
    ]
    if not keys:
        return None
    leave = "leaves" if len(keys) == 1 else "leave"
    reason = (
        f"{listed(keys)} {leave} as training made it, neither clipped nor under noise, as its "
        "class is known to leave it"
    )
    return DegenerateVerdict(reason, np.inf)


def key_rows(
    array_changes: Sequence[ArrayChange],
    layers: Sequence[str],
    every_layer: Sequence[str],
    rows: Rows,
) -> Iterator[Measurement]:
    """Make a row of each array under its layer; the riskiest array's is the layer's headline.

    Args:
        array_changes: of all arrays that the model has; none of a mechanism that sees no arrays.
        layers: those that are looked at.
        every_layer: of the model; arrays of those not looked at get no row.
        rows: with what all rows share.
    """
    if not array_changes:
        yield from rows.skipped(NOT_BY_KEY, BY_KEY, layers)
        return
    several = len({change.exchange for change in array_changes}) > 1
    riskiest_by = ["key", "exchange"] if several else ["key"]
    owned = {change.key: owner_of(change.key, every_layer) for change in array_changes}
    shown = [change for change in array_changes if owned[change.key] in (None, *layers)]
    for layer in layers:
        own = [change for change in shown if owned[change.key] == layer]
        if not own:
            yield from rows.skipped("no array of it is sent (--hide, --unsent)", BY_KEY, [layer])
            continue
        gravest = max(own, key=lambda change: (change.carries_on, change.ratio or 0.0))
        for row in _rows_of(gravest, layer, rows):
            more: Details = (
                {RISKIEST_BY: list[JsonValue](riskiest_by)} if row.status == "measured" else {}
            )
            yield row.with_details(more)
    for change in shown:
        variant: Variant = {name: getattr(change, name) for name in riskiest_by}
        yield from _rows_of(change, owned[change.key], rows.of(variant))


def _rows_of(change: ArrayChange, layer: str | None, rows: Rows) -> Iterable[Measurement]:
    details, value = change.details, float(change.carries_on)
    yield rows.measured("untouched", value, layer=layer, details=details)
    if change.ratio is None:
        yield from rows.skipped(NOT_TRAINED, ["norm_ratio"], [layer], details)
    else:
        yield rows.measured("norm_ratio", change.ratio, layer=layer, details=details)
