"""What changed between two reports, row by row."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from gradaudit.report import Measurement, Report, Variant
from gradaudit.wording import marked, number

ABSENT = "absent"


@dataclass(frozen=True)
class Change:
    """One row in two reports; None where a report does not have it."""

    old: Measurement | None
    new: Measurement | None

    @property
    def row(self) -> Measurement:
        """The row that names metric, layer and variant."""
        row = self.new or self.old
        assert row is not None, "a change has a row on at least one side"
        return row

    @property
    def difference(self) -> float | None:
        """New less old; None where not both are finite numbers."""
        before = self.old.value if self.old else None
        after = self.new.value if self.new else None
        return None if before is None or after is None else after - before

    @property
    def overlap(self) -> bool | None:
        """Whether the intervals overlap; None where not both have one.

        Intervals that do not overlap differ surely; those that do may still differ.
        """
        old, new = self.old and self.old.interval, self.new and self.new.interval
        if not old or not new:
            return None
        return old[0] <= new[1] and new[0] <= old[1]

    @property
    def same(self) -> bool:
        """Whether both reports say the same of the row."""
        return (
            self.old is not None
            and self.new is not None
            and (self.old.status, self.old.number, self.old.interval)
            == (self.new.status, self.new.number, self.new.interval)
        )

    @property
    def words(self) -> str:
        """The difference in words: ``+0.500 (+25.0 %)``; empty where there is none to tell."""
        if self.difference is None:
            return ""
        before = self.old.value if self.old else None
        share = f" ({_signed(100 * self.difference / abs(before))} %)" if before else ""
        return f"{_signed(self.difference)}{share}"

    def to_json(self) -> dict[str, JsonValue]:
        """Key, both values with their status, difference, overlap."""
        variant: Variant = self.row.variant
        return {
            "audit": self.row.audit,
            "metric": self.row.metric,
            "layer": self.row.layer,
            "variant": dict(variant),
            "old": _side(self.old),
            "new": _side(self.new),
            "difference": self.difference,
            "intervals_overlap": self.overlap,
        }


def changes(old: Report, new: Report, *, variants: bool = False) -> Iterator[Change]:
    """Every row of either report, in the new one's order, then those that only the old one has.

    Args:
        old: the earlier report.
        new: the later one.
        variants: whether rows with a variant are compared too.
    """
    before = {row.key: row for row in old.measurements if variants or not row.variant}
    for row in new.measurements:
        if variants or not row.variant:
            yield Change(before.pop(row.key, None), row)
    for row in before.values():
        yield Change(row, None)


def side(row: Measurement | None) -> str:
    """One side of a change as a cell: the estimate, a status, or ``absent``."""
    if row is None:
        return ABSENT
    return marked(row) if row.status == "measured" else row.status


def _signed(value: float) -> str:
    return number(value) if value < 0 else f"+{number(value)}"


def _side(row: Measurement | None) -> JsonValue:
    if row is None:
        return None
    infinite: dict[str, JsonValue] = {"infinite": True} if row.number == math.inf else {}
    interval: JsonValue = list(row.interval) if row.interval else None
    return {"status": row.status, "value": row.value, "interval": interval, **infinite}
