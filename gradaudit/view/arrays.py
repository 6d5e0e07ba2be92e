"""Array by array: what becomes of a client's update before it leaves."""

from collections.abc import Iterator
from dataclasses import dataclass

from gradaudit.report import Measurement, Report
from gradaudit.text import number


@dataclass(frozen=True)
class ArrayLine:
    """What becomes of one array of a model's state dict.

    Attributes:
        key: its name in the state dict.
        kind: its type and shape.
        before: norm of what training changed.
        after: norm of what is left of that, without noise.
        noise: deviation of the noise in an element.
        says: the same in words.
        open: whether it leaves as training made it.
    """

    key: str
    kind: str
    before: str
    after: str
    noise: str
    says: str
    open: bool


def arrays_of(report: Report) -> tuple[ArrayLine, ...]:
    """The arrays that a report tells of, those that leave as they are first."""
    lines = [_line(row) for row in _rows(report)]
    return tuple(sorted(lines, key=lambda line: not line.open))


def _rows(report: Report) -> Iterator[Measurement]:
    for row in report.select("dp-audit.untouched"):
        if row.variant.keys() == {"key"} and row.status == "measured":
            yield row


def _line(row: Measurement) -> ArrayLine:
    details = row.details
    before, after, noise = (_number(details.get(k)) for k in ("norm_before", "norm_after", "noise"))
    key, kind, says = (
        str(row.variant["key"]),
        str(details.get("kind", "")),
        str(details.get("says", "")),
    )
    return ArrayLine(key, kind, before, after, noise, says, open=row.value == 1)


def _number(value: object) -> str:
    return number(value) if isinstance(value, int | float) else ""
