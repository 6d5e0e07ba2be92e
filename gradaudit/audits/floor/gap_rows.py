"""What is unknown of a layer: what lies between its floor and the best attack that was measured."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from gradaudit.audits.floor import FloorOptions
from gradaudit.audits.floor.playing import DIRECTIONS, STARTS, STEPS, Attacked, AttackedRecords
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.rate_distortion import nats_shown
from gradaudit.audits.rows import Rows
from gradaudit.errors import NotApplicable
from gradaudit.models.target import Layer
from gradaudit.report import Measurement
from gradaudit.subject import Subject

GAP = "gap"
_MOST, _FEWEST = 16, 4
_CHEAP = 1e9
"""Tangents times parameters that attacks may take where nobody says; some 20 CPU seconds."""


def attacked(options: FloorOptions, subject: Subject) -> int:
    """How many records are attacked: as many as asked for, else those that are cheap enough."""
    if options.attacked is not None:
        return options.attacked
    parameters = sum(parameter.numel() for parameter in subject.target.model.parameters())
    affordable = int(_CHEAP / (tangents(subject) * max(1, parameters)))
    return min(_MOST, affordable) if affordable >= _FEWEST else 0


def tangents(subject: Subject) -> int:
    """Tangents of a record's gradient that its attacks take, by every layer and the model."""
    directions = min(subject.records.inputs[0].numel(), DIRECTIONS)
    return directions * STARTS * STEPS * (len(subject.layers) + 1)


class GapRows:
    """Rows of the gap between floors and attacks on records of the prior, by layers.

    Attributes:
        rows: makes them.
        records: those that are attacked; None where there are none.
    """

    def __init__(self, rows: Rows, records: AttackedRecords | None) -> None:
        self.rows, self.records = rows, records

    def row(
        self,
        name: str | None,
        layers: Sequence[Layer],
        floors: Mapping[str, Measurement],
        prior: GaussianPrior,
    ) -> Measurement:
        """The gap of some layers, whose floors by metric are known; empty without a reason."""
        floor = floors["mse_share"]
        if floor.value is None:
            return self._void(name, f"no floor: {floor.reason}")
        if self.records is None:
            return self._void(name, "no attack was played: it would take long; --attacked 16 does")
        try:
            attack = self.records.played(layers)
        except NotApplicable as why:
            return self._void(name, f"no attack: {why}")
        low, high = (end - floor.value for end in attack.interval)
        return self.rows.measured(
            GAP,
            attack.share - floor.value,
            layer=name,
            interval=(low, high),
            n=len(self.records.records),
            details=_ends(attack, floors, prior),
        )

    def _void(self, name: str | None, why: str) -> Measurement:
        (row,) = self.rows.skipped(why, [GAP], [name])
        return row


def _ends(
    attack: Attacked, floors: Mapping[str, Measurement], prior: GaussianPrior
) -> dict[str, JsonValue]:
    floor, nats = floors["mse_share"], floors["nats"]
    low, high = attack.interval
    return {
        "floor": floor.value,
        "floor_estimate": floor.details.get("estimate"),
        "attack": attack.share,
        "attack_low": low,
        "attack_high": high,
        "attack_by": attack.by,
        "floor_over_attack": None if attack.share <= 0 else (floor.value or 0.0) / attack.share,
        "nats_shown": nats_shown(high, prior.spectrum),
        "nats_most": nats.value,
    }
