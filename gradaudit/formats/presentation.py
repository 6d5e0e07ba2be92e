"""The functions by which a report prints, saves and shows itself."""

from pathlib import Path

from gradaudit.formats import format_for
from gradaudit.formats.frame import dataframe
from gradaudit.formats.glance import glance, notebook
from gradaudit.report import Report

__all__ = ["dataframe", "glance", "notebook", "save"]


def save(report: Report, path: Path) -> None:
    """Write the report whole or not at all, in the format of the file's suffix.

    Raises:
        UsageError: no format has this suffix, or the file cannot be written.
    """
    format_for(path).write(report, path)
