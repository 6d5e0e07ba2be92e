"""Names from files made fit for people: a terminal, a report, a log never sees them raw."""

from collections.abc import Collection

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(name: str, limit: int = 200) -> str:
    """A name from an untrusted file as harmless text of one line.

    Control characters, escape sequences, line and paragraph separators, bidirectional and other
    format characters, and lone surrogates become U+FFFD. Markup (``[red]``, ``<b>``) is left to
    whoever renders it.

    Args:
        name: any text.
        limit: characters kept; a longer name loses its middle.
    """
    if len(name) > limit:
        head = limit // 2
        name = f"{name[:head]}…{name[len(name) - (limit - head - 1) :]}"
    return "".join(c if c.isprintable() else REPLACEMENT for c in name)


def listed(names: Collection[str], limit: int = 4) -> str:
    """Names from an untrusted file in a sentence: ``a, b, c and 12 more``."""
    shown = ", ".join(printable(name) for name in list(names)[:limit])
    rest = len(names) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown
