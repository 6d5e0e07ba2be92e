"""Finding what a spec names among what a file holds, with help where it is not there."""

from collections.abc import Collection, Iterable

from gradaudit.errors import UsageError
from gradaudit.specs import suggest
from gradaudit.text import listed, printable

_LISTED = 20


def quote(name: str) -> str:
    """A name from a file as it may stand in a message."""
    return f"'{printable(name, 60)}'"


def choose(name: str, known: Collection[str], where: str, what: str) -> str:
    """``name`` itself, if it is known.

    Args:
        name: what the user named.
        known: the names there are.
        where: the file or spec, for the message.
        what: what the name is meant to be, for the message, e.g. ``column``.

    Raises:
        UsageError: it is not known; the message suggests a close name and lists the first few.
    """
    if name in known:
        return name
    raise UsageError(
        f"{where}: there is no {what} {quote(name)}{suggest(name, known)}; "
        f"it has {listed(known, _LISTED) or 'none'}"
    )


def choose_all(
    names: Iterable[str], known: Collection[str], where: str, what: str
) -> tuple[str, ...]:
    """The known names among repeated and comma separated ones, each once, in order.

    Raises:
        UsageError: one of them is not known.
    """
    single = (
        part for name in names for part in ([name] if name in known else name.split(",")) if part
    )
    return tuple(dict.fromkeys(choose(name, known, where, what) for name in single))
