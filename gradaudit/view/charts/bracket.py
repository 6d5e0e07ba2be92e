"""What is unknown of each layer: a bar from the proved floor to the best attack that was measured.

The axis is the attacker's mean squared error as a share of the prior's variance, from nothing left
unknown at the left to nothing learnt at the right.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from gradaudit.audits.sharing_options import ClientOptions
from gradaudit.core.text import number, printable
from gradaudit.measurement import number_of
from gradaudit.report import Measurement, Report

METRIC = "floor.gap"
HEIGHT = 26
WHOLE = "whole update"


@dataclass(frozen=True)
class Bracket:
    """One layer's bar.

    Attributes:
        layer: its name.
        bar: the bar as SVG, or nothing.
        says: both ends in words, or why there is no bar.
    """

    layer: str
    bar: Markup
    says: str


def brackets_of(report: Report) -> tuple[Bracket, ...]:
    """Returns the bar of every layer and of the model; empty where none was measured."""
    rows = [row for row in report.rows if row.id == METRIC and not row.variant]
    if not any(row.status == "measured" for row in rows):
        return ()
    rebuilt = _rebuilt(report)
    return tuple(_bracket(row, rebuilt if row.layer is None else None) for row in rows)


def _bracket(row: Measurement, rebuilt: float | None) -> Bracket:
    layer = row.layer or WHOLE
    ends = [
        number_of(row.details.get(key)) for key in ("floor", "attack", "attack_low", "attack_high")
    ]
    floor, attack, low, high = ends
    if floor is None or attack is None or low is None or high is None:
        return Bracket(layer, Markup(""), row.reason or "void")
    says = f"{number(floor)} to {number(attack)} [{number(low)}, {number(high)}]"
    if rebuilt is not None:
        says += f"; attack reconstruct on the data {number(rebuilt)}"
    title = printable(f"{layer}: no attack below {number(floor)}; measured {says}", limit=None)
    parts = Markup("").join(_parts(floor, attack, (low, high), rebuilt))
    bar = Markup(
        '<svg class="strip" role="img" width="100%" height="{}"><title>{}</title>{}</svg>'
    ).format(HEIGHT, title, parts)
    return Bracket(layer, bar, says)


def _parts(
    floor: float, attack: float, interval: tuple[float, float], rebuilt: float | None
) -> Iterator[Markup]:
    left, right = sorted(map(_at, (floor, attack)))
    yield Markup('<rect class="floor" x="{:.1f}%" width="{:.1f}%" y="8" height="10"/>').format(
        left, max(right - left, 0.3)
    )
    yield Markup('<line class="limit" x1="{0:.1f}%" x2="{0:.1f}%" y1="3" y2="23"/>').format(
        _at(floor)
    )
    low, high = map(_at, interval)
    yield Markup(
        '<line class="interval" x1="{:.1f}%" x2="{:.1f}%" y1="13" y2="13"/>'
        '<circle class="dot" cx="{:.1f}%" cy="13" r="4"/>'
    ).format(low, high, _at(attack))
    if rebuilt is not None:
        yield Markup('<circle class="dot hollow" cx="{:.1f}%" cy="13" r="4"/>').format(_at(rebuilt))


def _at(share: float) -> float:
    return 2 + 96 * min(1.0, max(0.0, share))


def _rebuilt(report: Report) -> float | None:
    """Returns what attack reconstruct left of the data's records, on the same axis.

    None unless it was on the update that the floor is about: one that clients make alike, under the
    same noise.
    """
    floors = [row for row in report.select("floor.mse_share") if not row.variant]
    whole = next((row for row in floors if row.layer is None and row.value), None)
    attack = next((row for row in report.select("attack.mse") if not row.variant), None)
    floor, rebuilding = (report.options.get(name) for name in ("floor", "attack reconstruct"))
    if floor is None or rebuilding is None or whole is None:
        return None
    made = {name: field.default for name, field in ClientOptions.model_fields.items()}
    alike = all(floor.get(name, at) == rebuilding.get(name, at) for name, at in made.items())
    other = floor.get("sigma") or rebuilding.get("update")
    error = number_of(whole.details.get("mse"))
    if not (alike and error) or other or attack is None or attack.value is None:
        return None
    return attack.value * (whole.value or 0.0) / error
