"""Registers the functions that show reports.

A report can be printed, saved and shown in a notebook, but the module that defines it imports no
format. ``gradaudit`` registers here how to get what shows reports, and imports it on first use.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pandas import DataFrame


Shape = Literal["table", "json", "markdown", "sarif", "junit", "github"]
"""Names of the formats that are shown on standard output."""
STDOUT = Path("-")
"""A dash, which names standard output as a file to write, and standard input as one to read."""


def shape_of(asked: Shape | None, output: Collection[Path] | None) -> Shape:
    """Returns the format on standard output: as asked, else JSON for a dash, else a table."""
    return asked or ("json" if STDOUT in (output or ()) else "table")


class Presentation(Protocol):
    """The functions that show a report."""

    def save(self, report: Any, path: Path) -> None:
        """Write the report in the format of the file's suffix."""

    def dataframe(self, report: Any) -> "DataFrame":
        """Return the rows as a table of pandas."""

    def glance(self, report: Any) -> str:
        """Return a summary of at most ten lines."""

    def notebook(self, report: Any) -> str:
        """Return the summary as HTML."""


_loaders: list[Callable[[], Presentation]] = []


def register(loader: Callable[[], Presentation]) -> None:
    """Show reports from now on with the functions that ``loader`` imports."""
    _loaders[:] = [loader]


def presentation() -> Presentation:
    """Return the functions that show reports."""
    return _loaders[-1]()
