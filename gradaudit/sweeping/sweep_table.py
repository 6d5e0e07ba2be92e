"""Writes a sweep as a table: tidy rows for a program, or values and intervals for a paper."""

from pathlib import Path

from gradaudit.core.files import write_atomically
from gradaudit.core.text import markdown_escape, markdown_table, number
from gradaudit.errors import UsageError
from gradaudit.formats.tidy import TidyCsv
from gradaudit.report import Measurement, Report
from gradaudit.sweeping.grid import axes_of

SUFFIXES = (".csv", ".md")


def expect_table(path: Path) -> None:
    """Check before the work that a table can be written to a path.

    Raises:
        UsageError: the suffix is that of no table, or the folder is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: tables of a sweep are written as {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")


def write_table(path: Path, report: Report, metric: str) -> None:
    """Write a sweep's rows.

    Args:
        path: ends in .csv for every row of every metric, one a line, with a column for each
            setting; in .md for the values and intervals of one metric.
        report: of the sweep, which names its axes.
        metric: ``audit.metric``.

    Raises:
        UsageError: the report is not of a sweep, or the metric was not measured in it.
    """
    names = [axis.name for axis in axes_of(report)]
    if path.suffix.lower() == ".csv":
        write_atomically(path, TidyCsv().render(report).encode())
        return
    rows = [row for row in report.select(metric) if row.variant.keys() == set(names)]
    if not any(row.status == "measured" for row in rows):
        raise UsageError(f"--table: {metric} was not measured; name another --metric")
    lines = [
        [*(str(row.variant[name]) for name in names), row.layer or "whole model", *_value(row)]
        for row in rows
    ]
    share = next((row.confidence for row in rows if row.confidence is not None), 0.95)
    headings = [*names, "layer", metric, f"{share:.0%} interval"]
    heads, *cells = (list(map(markdown_escape, line)) for line in (headings, *lines))
    written = markdown_table(heads, cells)
    write_atomically(path, "".join(f"{line}\n" for line in written).encode())


def _value(row: Measurement) -> tuple[str, str]:
    if row.status != "measured" or row.number is None:
        return "–", ""
    if row.interval is None:
        return number(row.number), ""
    low, high = row.interval
    return number(row.number), f"[{number(low)}, {'∞' if row.unbounded else number(high)}]"
