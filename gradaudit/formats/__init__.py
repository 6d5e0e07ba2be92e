"""Formats of reports, one a file; a new file's suffix is known to ``-o``."""

from pathlib import Path

from gradaudit.core.parts import discover
from gradaudit.core.specs import pick
from gradaudit.errors import UsageError
from gradaudit.formats.base import Format

__all__ = ["Format", "format_for", "format_named", "formats"]


def formats() -> dict[str, type[Format]]:
    """Returns every format by name."""
    return discover("gradaudit.formats", Format)


def format_for(path: Path) -> Format:
    """Returns the format of a file's suffix; the longest suffix counts (``.sarif.json``).

    Raises:
        UsageError: no format has this suffix.
    """
    endings = {end: kind for kind in formats().values() for end in (kind.suffix, *kind.aliases)}
    for end in sorted(endings, key=len, reverse=True):
        if path.name.lower().endswith(end):
            return endings[end]()
    known = ", ".join(sorted(kind.suffix for kind in formats().values()))
    raise UsageError(f"{path}: no report format has this suffix; there are: {known}")


def format_named(name: str, *, every: bool = False) -> Format:
    """Returns the format of this name.

    Args:
        name: of the format.
        every: whether a format that shows the gravest alone shows everything.

    Raises:
        UsageError: there is none.
    """
    return pick(name, formats(), name, "report format")(every=every)
