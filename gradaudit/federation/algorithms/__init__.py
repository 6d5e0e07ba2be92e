"""Who trains when, and what the server makes of it: one algorithm a file."""

from gradaudit.errors import UsageError
from gradaudit.federation.algorithms.base import Algorithm
from gradaudit.parts import discover
from gradaudit.specs import suggest


def algorithms() -> dict[str, type[Algorithm]]:
    """The algorithms by name."""
    return discover("gradaudit.federation.algorithms", Algorithm)


def choose_algorithm(name: str) -> Algorithm:
    """The algorithm of that name.

    Raises:
        UsageError: there is none.
    """
    known = algorithms()
    if name not in known:
        raise UsageError(
            f"--algorithm {name}: no such algorithm{suggest(name, known)}; "
            f"there are: {', '.join(known)}"
        )
    return known[name]()


__all__ = ["Algorithm", "algorithms", "choose_algorithm"]
