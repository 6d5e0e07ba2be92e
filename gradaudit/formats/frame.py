"""A report's rows as a table of pandas."""

from typing import TYPE_CHECKING

from gradaudit.errors import UsageError
from gradaudit.report import Measurement, Report
from gradaudit.text import variant_text

if TYPE_CHECKING:
    from pandas import DataFrame

_AS_THEY_ARE = ("audit", "metric", "layer", "confidence", "unit", "n", "status", "reason")
COLUMNS = (*_AS_THEY_ARE[:3], "variant", "value", "low", "high", *_AS_THEY_ARE[3:])


def dataframe(report: Report) -> "DataFrame":
    """One line a row, in the order of the report, with the columns ``COLUMNS``.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise UsageError("a data frame needs pandas: pip install 'gradaudit[pandas]'") from error
    return DataFrame([_line(row) for row in report.measurements], columns=COLUMNS)


def _line(row: Measurement) -> dict[str, object]:
    low, high = row.interval or (None, None)
    values = {name: getattr(row, name) for name in _AS_THEY_ARE}
    words = variant_text(row.variant)
    return {**values, "variant": words, "value": row.number, "low": low, "high": high}
