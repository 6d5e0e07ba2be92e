"""What a number is where nothing is given away: for a permuted attribute, or by chance."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from gradaudit.audits import Metric
from gradaudit.report import Key, Measurement
from gradaudit.text import number

PERMUTED = "attribute_permuted"
"""Key of the variant, or of the details, of a row about a permuted attribute."""


class PermutationFloor(NamedTuple):
    """A number for a permuted attribute, with its interval where it has one."""

    value: float
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        """``0.533 [0.257, 0.808]``."""
        if self.interval is None:
            return number(self.value)
        low, high = self.interval
        return f"{number(self.value)} [{number(low)}, {number(high)}]"


def permuted(row: Measurement, rows: Mapping[Key, Measurement]) -> PermutationFloor | None:
    """The same number for a permuted attribute, from the row's details or a row of its own."""
    return _from_details(row.details.get("permuted")) or _from_row(row, rows)


def floor_of(row: Measurement, rows: Mapping[Key, Measurement], known: Metric | None) -> str:
    """The floor in words; empty where nobody knows it."""
    if floor := permuted(row, rows):
        return f"permuted {floor}"
    if known is not None and known.chance is not None:
        return f"chance {known.chance:.10g}"
    return ""


def _from_details(given: object) -> PermutationFloor | None:
    if not isinstance(given, dict) or not isinstance(value := given.get("value"), int | float):
        return None
    ends = given.get("interval")
    if not isinstance(ends, list) or len(ends) != 2:
        return PermutationFloor(float(value))
    low, high = ends
    both = isinstance(low, int | float) and isinstance(high, int | float)
    return PermutationFloor(float(value), (float(low), float(high)) if both else None)


def _from_row(row: Measurement, rows: Mapping[Key, Measurement]) -> PermutationFloor | None:
    key = row.id, row.layer, json.dumps({**row.variant, PERMUTED: True}, sort_keys=True)
    permuted = rows.get(key)
    return (
        PermutationFloor(permuted.value, permuted.interval)
        if permuted and permuted.value is not None
        else None
    )
