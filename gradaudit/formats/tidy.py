"""Tidy table of a report's rows: the lines of a CSV file and of a data frame."""

import csv
import io

from gradaudit.core.text import printable
from gradaudit.formats.base import Format
from gradaudit.judging import Policy, known_metrics
from gradaudit.measurement import text_of
from gradaudit.report import Measurement, Report
from gradaudit.view.cells import permuted

FIRST = ("audit", "metric", "layer")
LAST = (
    *("value", "low", "high", "confidence", "unit", "n", "baseline", "median", "known_low"),
    *("known_high", "method", "effort", "setting", "status", "reason"),
)
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
Line = dict[str, object]


class TidyCsv(Format):
    """Every row as a line, with a column for each setting."""

    name = "csv"
    suffix = ".csv"
    summary = "every row as a tidy table, for a spreadsheet or pandas"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The table; a text that a spreadsheet would run as a formula begins with a quote."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = columns(report)
        writer.writerow(map(_inert, names))
        writer.writerows([_inert(line.get(name)) for name in names] for line in lines(report))
        return text.getvalue()


def columns(report: Report) -> list[str]:
    """Name the columns: those of every report, and one for each setting of its rows."""
    settings = dict.fromkeys(_column(key) for row in report.rows for key in row.variant)
    return [*FIRST, *(name for name in settings if name != "method"), *LAST]


def lines(report: Report) -> list[Line]:
    """Return a line for each row by column, without headlines that repeat another row."""
    repeated = {_number(row) for row in report.rows if row.variant}
    return [
        _line(row, report) for row in report.rows if row.variant or _number(row) not in repeated
    ]


def _number(row: Measurement) -> tuple[object, ...]:
    return row.id, row.layer, row.status, row.number, row.interval


def _line(row: Measurement, report: Report) -> Line:
    metric, floor = known_metrics().get(row.id), permuted(row, report.by_key())
    low, high = row.interval or (None, None)
    known_low, known_high = row.known_to or (None, None)
    median = row.details.get("median")
    return {
        "audit": row.audit,
        "metric": row.metric,
        "layer": row.layer or "",
        **{name: text_of(row.details.get(name)) for name in ("method", "effort", "setting")},
        **{_column(key): value for key, value in row.variant.items()},
        "value": row.number,
        "low": low,
        "high": high,
        "confidence": row.confidence,
        "unit": row.unit,
        "n": row.n,
        "baseline": floor.value if floor else metric.chance if metric else None,
        "median": median if isinstance(median, int | float) else None,
        "known_low": known_low,
        "known_high": known_high,
        "status": row.status,
        "reason": row.reason or "",
    }


def _column(key: str) -> str:
    """Name a setting's column apart from those of every report; its method is the row's."""
    return f"variant.{key}" if key in (*FIRST, *LAST) and key != "method" else key


def _inert(cell: object) -> object:
    """Make a text harmless to a terminal or a log, and quote one that is a formula."""
    if not isinstance(cell, str):
        return cell
    quote = "'" if cell.startswith(_FORMULAS) else ""
    return quote + printable(cell, limit=None)
